"""Tensors that another program saved, by name: what each of them is, and of which tensor of the model.

    grad/0/module._orig_mod.fc.weight  ->  the gradient of `fc.weight` in step 0

The names are listed in `errors.py` (TensorsUnreadable), and a wrapper's parts of them are left out.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ssdsl.model.load.model import Model
from ssdsl.model.load.unmaterialised import first_names, named_tensors
from ssdsl.record import Record
from ssdsl.run.checkpoints.convert import safetensors_library
from ssdsl.run.verify.errors import TensorsMisfit, TensorsUnknown, TensorsUnreadable
from ssdsl.text.diagnostic import PlanError

WRAPPERS = re.compile(r"(?:^|(?<=\.))(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|_forward_module)\.")
LEADING = re.compile(r"^(?:module\.)+")
KEY = re.compile(r"(?P<kind>loss)/(?P<step>\d+)$|(?P<per_step>batch|grad)/(?P<at>\d+)/(?P<name>.+)$")
STATE = re.compile(r"(?P<kind>start|weight|buffer)/(?P<name>.+)$")
KINDS = ("start/", "batch/", "loss/", "grad/", "weight/", "buffer/")
CONTAINERS = ("model/", "state_dict/", "module/")  # of a checkpoint's weights
SHOWN = 5
NAMES = "`ssdsl explain E0545` lists the names"

Tensors = dict[str, torch.Tensor]


class OtherProgram(Record):
    """What a file has, by the model's own names. `grads` and `batches` are by step, `state` has weights and buffers
    after the last step. `said` are sentences about names that were changed."""

    file: str
    start: Tensors
    batches: dict[int, Tensors]
    losses: dict[int, float]
    grads: dict[int, Tensors]
    state: Tensors
    said: tuple[str, ...]
    unknown: TensorsUnknown | None

    @property
    def steps(self) -> int:
        """The number of steps of which it has a loss or a gradient."""
        return max((step + 1 for step in (*self.losses, *self.grads)), default=0)


def read_other(path: Path, model: Model) -> OtherProgram:
    """The tensors of a file for a model. Raises PlanError: it cannot be read, or a tensor has another shape."""
    found, said = _entries(path), list[str]()
    if not any(name.startswith(KINDS) for name in found):
        found, said = _as_weights(found)
    names = _Names(model, [m["name"] for key in found if (m := _parsed(key)) and m["kind"] != "batch" and m["name"]])
    other = OtherProgram(str(path), {}, {}, {}, {}, {}, (), None)
    unknown, misfits = list[str](), list[TensorsMisfit]()
    for key, tensor in found.items():
        place = _placed(other, names, key)
        if place is None:
            unknown.append(key)
            continue
        table, name, own = place
        if own is None:
            if tensor.numel() != 1:
                misfits.append(_misfit(path, key, tensor, "one number", "save the loss of the whole batch"))
            else:
                table[name] = float(tensor)
        elif (fits := _fitting(tensor, own)) is None:
            whole = "save the whole tensor: `tensor.full_tensor()` of a DTensor"
            change = "save the input of the whole batch" if key.startswith("batch/") else whole
            misfits.append(_misfit(path, key, tensor, _typed(own), change))
        else:
            table[name] = fits
    if misfits:
        raise PlanError(*misfits[:SHOWN])
    said += names.said()
    lost = _unknown(path, unknown, names) if unknown else None
    return OtherProgram(
        str(path), other.start, other.batches, other.losses, other.grads, other.state, tuple(said), lost
    )


def _as_weights(found: Tensors) -> tuple[Tensors, list[str]]:
    """The tensors of a file without kinds, such as a state_dict or a checkpoint that has one: weights after the last
    step; and a sentence that says so."""
    within = next((name for name in CONTAINERS if any(key.startswith(name) for key in found)), "")
    weights = {f"weight/{key.removeprefix(within)}": t for key, t in found.items() if key.startswith(within)}
    what = f"those in `{within.rstrip('/')}`" if within else "its tensors"
    return weights, [f"it has no kinds of tensors: {what} are taken as weights after the last step"]


def _parsed(key: str) -> dict[str, str] | None:
    """The kind, step and name of a key; None if it is no name of these."""
    if match := STATE.match(key):
        return {"kind": match["kind"], "step": "", "name": match["name"]}
    if match := KEY.match(key):
        return {"kind": match["kind"] or match["per_step"], "step": match["step"] or match["at"], "name": match["name"]}
    return None


def _placed(
    other: OtherProgram, names: "_Names", key: str
) -> tuple[dict[Any, Any], int | str, torch.Tensor | None] | None:
    """Where a tensor goes, under which name, and the model's tensor that it has to be like; None if the model does not
    know it."""
    parsed = _parsed(key)
    if parsed is None:
        return None
    kind, step = parsed["kind"], int(parsed["step"] or 0)
    if kind == "loss":
        return other.losses, step, None
    if kind == "batch":
        own = names.model.batches[0].get(parsed["name"])
        return None if own is None else (other.batches.setdefault(step, {}), parsed["name"], own)
    name = names.own(parsed["name"])
    if name is None or (kind == "grad" and name not in names.weights):
        return None
    if kind == "grad":
        return other.grads.setdefault(step, {}), name, names.tensors[name]
    return (other.start if kind == "start" else other.state), name, names.tensors[name]


class _Names:
    """The model's own names for those of another program."""

    def __init__(self, model: Model, foreign: Sequence[str]) -> None:
        self.model = model
        self.tensors: Mapping[str, torch.Tensor] = dict(named_tensors(model.module))
        self.weights = {name for name, _ in model.module.named_parameters(remove_duplicate=False)}
        self.first = first_names(named_tensors(model.module))
        self.left_out: Counter[str] = Counter()
        self.put: Counter[str] = Counter()
        self.prefix = self._prefix([plain for name in foreign if (plain := _plain(name)) not in self.tensors])

    def own(self, name: str) -> str | None:
        """The first name of the model's tensor; None if it has none."""
        plain = name if name in self.tensors else _plain(name)
        if plain not in self.tensors:
            if not self.prefix or f"{self.prefix}{plain}" not in self.tensors:
                return None
            self.put[self.prefix] += 1
            plain = f"{self.prefix}{plain}"
        elif plain != name:
            self.left_out[_wrapping(name)] += 1
        return self.first.get(plain, plain)

    def _prefix(self, unknown: Sequence[str]) -> str:
        """The prefix that these names lack, "" if there is none or more than one that all have."""
        ends = {
            name: {known.removesuffix(name) for known in self.tensors if known.endswith(f".{name}")}
            for name in dict.fromkeys(unknown)
        }
        shared = set.intersection(*ends.values()) if ends else set()
        return shared.pop() if len(shared) == 1 else ""

    def said(self) -> list[str]:
        """Sentences about the names that were changed."""
        left = [f"`{wrapper}` is left out of {count} names" for wrapper, count in self.left_out.items()]
        return left + [f"`{prefix}` is put in front of {count} names" for prefix, count in self.put.items()]


def _plain(name: str) -> str:
    """A name without what wrappers put into it.

    >>> _plain("module._orig_mod.h.0._checkpoint_wrapped_module.fc.weight")
    'h.0.fc.weight'
    """
    return LEADING.sub("", WRAPPERS.sub("", LEADING.sub("", name)))


def _wrapping(name: str) -> str:
    """What wrappers put into a name.

    >>> _wrapping("module._orig_mod.h.0.fc.weight")
    'module._orig_mod.'
    """
    leading = LEADING.match(name)
    return (leading.group() if leading else "") + "".join(WRAPPERS.findall(LEADING.sub("", name)))


def _fitting(tensor: torch.Tensor, own: torch.Tensor) -> torch.Tensor | None:
    """The tensor, if it has the shape of the model's and a type of its kind; None otherwise."""
    kinds = [(t.is_complex(), t.is_floating_point()) for t in (tensor, own)]
    return tensor if tensor.shape == own.shape and kinds[0] == kinds[1] else None


def _typed(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _misfit(path: Path, key: str, tensor: torch.Tensor, expected: str, change: str) -> TensorsMisfit:
    return TensorsMisfit(None, str(path), key, _typed(tensor), expected, change)


def _unknown(path: Path, keys: Sequence[str], names: _Names) -> TensorsUnknown:
    more = [f"and {len(keys) - SHOWN} more"] if len(keys) > SHOWN else []
    count = "a tensor" if len(keys) == 1 else f"{len(keys)} tensors"
    known = ", ".join(f"`{name}`" for name in [*names.tensors][:2])
    inputs = ", ".join(f"`{name}`" for name in names.model.batches[0])
    change = f"{NAMES}; those of the model are like {known}, its inputs are {inputs}"
    return TensorsUnknown(None, str(path), count, "\n".join([*(f"`{key}`" for key in keys[:SHOWN]), *more]), change)


# -- files -------------------------------------------------------------------------------------------------------------


def _entries(path: Path) -> Tensors:
    """The tensors of a file by name, nested names joined by `/`. Raises PlanError."""
    if not path.is_file():
        raise _wrong(path, "it is a folder" if path.is_dir() else "there is no such file", "give another file")
    try:
        if path.suffix == ".safetensors":
            read = safetensors_library().torch.load_file(path)
        else:
            read = torch.load(path, map_location="cpu", weights_only=True)
    except PlanError:
        raise
    except Exception as error:  # a file may be wrong in any way
        if "Weights only load failed" in str(error):
            raise _wrong(path, "it holds other objects than tensors", f"save a dict of tensors; {NAMES}") from None
        reason = str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
        change = "write a dict of tensors with torch.save, or a .safetensors file"
        raise _wrong(path, f"it cannot be read ({reason})", f"{change}; {NAMES}") from None
    if not isinstance(read, Mapping):
        raise _wrong(path, f"it holds a {type(read).__name__}, not tensors by name", f"save a dict; {NAMES}")
    found, others = Tensors(), list[str]()
    for key, value in _flat(read, ""):
        if type(value).__name__ == "DTensor":
            raise _wrong(path, f"`{key}` is a DTensor, of which a rank has a part", "save `tensor.full_tensor()`")
        if isinstance(value, torch.Tensor):
            found[key] = value.detach()
        elif isinstance(value, int | float):
            found[key] = torch.tensor(value, dtype=torch.float64)
        else:
            others.append(key)
    if not found:
        raise _wrong(path, "it holds no tensors by name", f"save a dict of tensors; {NAMES}")
    return found


def _flat(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The values of nested dicts and lists, by the path of their keys."""
    items: Iterable[tuple[Any, Any]]
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, list | tuple) and not isinstance(value, torch.Size):
        items = enumerate(value)
    else:
        yield name, value
        return
    for key, inner in items:
        yield from _flat(inner, f"{name}/{key}" if name else str(key))


def _wrong(path: Path, reason: str, change: str) -> PlanError:
    return PlanError(TensorsUnreadable(None, str(path), reason, change))
