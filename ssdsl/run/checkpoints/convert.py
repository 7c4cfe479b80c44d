"""Converts checkpoints to and from files of a single device: torch's own, and Hugging Face's safetensors."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ssdsl.run.checkpoints.errors import (
    CheckpointWrong,
    NoOptimizerState,
    OptimizerWithoutNames,
    SafetensorsMissing,
    WeightsUnreadable,
)
from ssdsl.run.failures import writing
from ssdsl.runtime.checkpoints.content import content_of
from ssdsl.runtime.checkpoints.reader import Checkpoint
from ssdsl.runtime.checkpoints.saver import Saver
from ssdsl.runtime.errors import EngineError
from ssdsl.runtime.health.failure import written_whole
from ssdsl.runtime.ranks.control import LoneControl
from ssdsl.runtime.step.parts import LocalTensor
from ssdsl.runtime.train.training_state import saved_optimizers
from ssdsl.text.diagnostic import PlanError

Tensors = dict[str, torch.Tensor]
INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
NAMED = 'save {"model": model.state_dict()} with torch.save'


def open_checkpoint(path: str) -> Checkpoint:
    """The checkpoint in a folder, or the newest of a run; raises PlanError."""
    with wrong_checkpoints():
        return Checkpoint.open(path)


@contextmanager
def wrong_checkpoints() -> Iterator[None]:
    """A context in which errors of a checkpoint become diagnostics."""
    try:
        yield
    except EngineError as error:
        raise PlanError(CheckpointWrong(None, error.reason, error.help)) from error


# -- torch -------------------------------------------------------------------------------------------------------------


def to_torch(checkpoint: Checkpoint, file: Path, optim: bool) -> None:
    """Writes a file for `torch.load(weights_only=True)`: `{"model", "steps"}`, with `optim` also the optimizer's
    state_dict. Raises PlanError."""
    found: dict[str, Any] = {"model": _model(checkpoint), "steps": checkpoint.facts.get("steps", 0)}
    if optim:
        found["optim"] = _optimizer(checkpoint)
    with writing(file.parent, file), written_whole(file) as beside, beside.open("wb") as opened:
        torch.save(found, opened)  # which raises RuntimeError if it opens the file itself


def _model(checkpoint: Checkpoint) -> Tensors:
    """All weights and buffers, in the model's order; the names of a tied weight share one tensor."""
    aliases: dict[str, str] = checkpoint.facts.get("aliases", {})
    names = [path[0] for path in checkpoint.under("model") if len(path) == 1]
    with wrong_checkpoints():
        found = {name: checkpoint.whole(("model", name)) for name in names if name not in aliases}
    if not found:
        raise PlanError(CheckpointWrong(None, f"`{checkpoint.folder}` has no tensors under `model`", ""))
    tied = {name: found[aliases[name]] for name in names if name in aliases}
    return {name: {**found, **tied}[name] for name in sorted(names, key=_order(checkpoint))}


def _order(checkpoint: Checkpoint) -> Any:
    """A sort key of names: the position in the model, if the checkpoint has it, else the parts of the name, with their
    numbers as numbers: `h.2.weight` comes before `h.10.weight`."""
    known = {name: place for place, name in enumerate(checkpoint.facts.get("names", ()))}
    return lambda name: (known.get(name, len(known)), [(len(part) * part.isdigit(), part) for part in name.split(".")])


def _optimizer(checkpoint: Checkpoint) -> dict[str, Any]:
    """The optimizer's state as torch's `state_dict`, which numbers weights: group after group, in each in the model's
    order; groups of several optimizers follow each other. Raises PlanError if the checkpoint has no parameter
    groups."""
    groups = [group for facts in saved_optimizers(checkpoint.facts) for group in facts.get("param_groups", ())]
    if not groups:
        raise PlanError(NoOptimizerState(None, str(checkpoint.folder)))
    state: dict[int, dict[str, torch.Tensor]] = {}
    numbered: list[dict[str, Any]] = []
    for group in groups:
        names = sorted(group["params"], key=_order(checkpoint))
        first = sum(len(g["params"]) for g in numbered)
        numbered.append({**group, "params": [*range(first, first + len(names))], "param_names": names})
        for number, name in enumerate(names, first):
            keys = checkpoint.under("optim", "state", name)
            with wrong_checkpoints():
                values = {key: checkpoint.whole(("optim", "state", name, key)) for (key,) in keys}
            if values:
                state[number] = values
    return {"state": state, "param_groups": numbered}


def from_torch(file: Path, folder: Path) -> None:
    """Saves a file of `to_torch`, or of a single device's script, as a checkpoint in a run's folder; raises
    PlanError."""
    with _reading(file, NAMED):
        if not file.exists():
            raise PlanError(WeightsUnreadable(None, str(file), "there is no such file", "give another"))
        found = torch.load(file, map_location="cpu", weights_only=True)
    model = found.get("model", found) if isinstance(found, Mapping) else None
    if not isinstance(model, Mapping) or not model or not all(isinstance(t, torch.Tensor) for t in model.values()):
        raise PlanError(WeightsUnreadable(None, str(file), "it holds no tensors by name", NAMED))
    nested = found if model is not found else {}
    state, optimizer = _by_name(file, nested["optim"]) if nested.get("optim") else ({}, None)
    facts = {"steps": nested.get("steps", 0), "optimizer": optimizer}
    _save(folder, dict(model), state, {key: value for key, value in facts.items() if value is not None})


def _by_name(file: Path, optim: Any) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """The state of a torch optimizer's `state_dict` by the names of weights, and its groups with names instead of
    numbers. Raises PlanError if it has no names."""
    try:
        groups = [{**g, "params": list(g["param_names"])} for g in optim["param_groups"]]
        names = {n: name for g in optim["param_groups"] for n, name in zip(g["params"], g["param_names"], strict=True)}
        state = {names[number]: values for number, values in optim["state"].items()}
    except (KeyError, TypeError, ValueError) as error:
        raise PlanError(OptimizerWithoutNames(None, str(file))) from error
    for group in groups:
        del group["param_names"]
    return state, {"param_groups": groups}


# -- safetensors -------------------------------------------------------------------------------------------------------


def to_safetensors(checkpoint: Checkpoint, target: Path, largest_bytes: int) -> None:
    """Writes the weights to a `.safetensors` file, or to a folder: in several files if they exceed `largest_bytes`. A
    tied weight is written once, under its first name. Raises PlanError."""
    save_file = safetensors_library().torch.save_file
    aliases = checkpoint.facts.get("aliases", {})
    tensors = {name: tensor.contiguous() for name, tensor in _model(checkpoint).items() if name not in aliases}
    if target.suffix == ".safetensors":
        files = {target: tensors}
    else:
        shards = _shards(tensors, largest_bytes)
        count = len(shards)
        names = [SINGLE] if count == 1 else [f"model-{n:05d}-of-{count:05d}.safetensors" for n in range(1, count + 1)]
        files = dict(zip((target / name for name in names), shards, strict=True))
    with writing(target.parent, target):
        for file, shard in files.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            with written_whole(file) as beside:
                save_file(shard, beside, metadata={"format": "pt"})
        if len(files) > 1:
            index = {
                "metadata": {"total_size": sum(t.nbytes for t in tensors.values())},
                "weight_map": {name: file.name for file, shard in files.items() for name in shard},
            }
            with written_whole(target / INDEX) as beside:
                beside.write_text(json.dumps(index, indent=2) + "\n")


def _shards(tensors: Tensors, largest_bytes: int) -> list[Tensors]:
    """The tensors in groups of at most so many bytes, in order; a larger tensor is a group."""
    groups: list[Tensors] = [{}]
    for name, tensor in tensors.items():
        if groups[-1] and sum(t.nbytes for t in groups[-1].values()) + tensor.nbytes > largest_bytes:
            groups.append({})
        groups[-1][name] = tensor
    return groups


def from_safetensors(source: Path, folder: Path) -> None:
    """Saves the weights of a file, or of a folder of files, as a checkpoint in a run's folder; raises PlanError. A
    folder's `config.json` gives the names that the module has for them."""
    library, files = safetensors_library(), _files(source)
    with _reading(source):
        tensors = converted(source, [name for file in files for name in _names(library, file)])
    if tensors is None:
        tensors = {}
        for file in files:
            with _reading(file):
                tensors |= library.torch.load_file(file)
    _save(folder, tensors, {}, {"steps": 0})


def _names(library: Any, file: Path) -> list[str]:
    """The names of a safetensors file's tensors, which are not read."""
    with _reading(file), library.safe_open(file, "pt") as opened:
        return list(opened.keys())


@contextmanager
def _reading(file: Path, change: str = "download it again, or write it again") -> Iterator[None]:
    """A context in which unreadable files become diagnostics."""
    try:
        yield
    except PlanError:
        raise
    except Exception as error:  # errors of torch.load, of safetensors, of transformers and of the disk
        raise PlanError(WeightsUnreadable(None, str(file), _first_line(error), change)) from error


def _files(source: Path) -> list[Path]:
    """The safetensors files of a file, an index or a folder with either; raises PlanError if there are none."""
    if source.is_file() and not source.name.endswith(".index.json"):
        return [source]
    index = source if source.is_file() else source / INDEX
    if index.exists():
        with _reading(index, "download it again"):
            names = dict.fromkeys(json.loads(index.read_text())["weight_map"].values())
        return [index.parent / name for name in names]
    if (source / SINGLE).exists():
        return [source / SINGLE]
    reason = f"there is neither `{SINGLE}` nor `{INDEX}`" if source.is_dir() else "there is no such file"
    raise PlanError(WeightsUnreadable(None, str(source), reason, "give a .safetensors file, or a folder with one"))


def safetensors_library() -> Any:
    """The package safetensors. Raises PlanError where it is not installed."""
    try:
        import safetensors.torch
    except ImportError as error:
        raise PlanError(SafetensorsMissing(None)) from error
    return safetensors


# -- both --------------------------------------------------------------------------------------------------------------


def _save(folder: Path, model: Tensors, state: dict[str, dict[str, Any]], facts: dict[str, Any]) -> None:
    """Saves whole tensors as a checkpoint; `state` is the optimizer's, by the names of weights. Names of one tensor are
    saved as aliases of the first; empty tensors, whose memory has no address, are never aliases."""
    first: dict[Any, str] = {}
    places = {
        name: (t.untyped_storage().data_ptr(), t.storage_offset(), t.shape, t.stride(), t.dtype) if t.numel() else name
        for name, t in model.items()
    }
    known = {name: first.setdefault(place, name) for name, place in places.items()}
    weights = [LocalTensor.whole(name, tensor) for name, tensor in model.items() if known[name] == name]
    moments = {name: {key: _local(name, value) for key, value in values.items()} for name, values in state.items()}
    aliases = {name: other for name, other in known.items() if name != other}
    content = content_of(weights, moments, {**facts, "names": list(model)}, aliases=aliases)
    with wrong_checkpoints():
        Saver(LoneControl(), background=False).save(folder, facts["steps"], content, keep=None)


def _local(name: str, value: Any) -> Any:
    """A tensor with axes as a part of a weight, here the whole; other values (a step count) as they are."""
    return LocalTensor.whole(name, value) if isinstance(value, torch.Tensor) and value.dim() else value


def _first_line(error: Exception) -> str:
    text = re.sub(r"\s+", " ", str(error).strip().split("\n")[0])
    return text or type(error).__name__


# -- files with other names than the module ----------------------------------------------------------------------------


def converted(folder: Path, names: Iterable[str]) -> dict[str, torch.Tensor] | None:
    """Pretrained weights under the module's names; None if the files already have these `names`, or the class is
    unknown.

    A Hugging Face folder has a `config.json` that names the model's class. For example, Mixtral's files have `w1`, `w2`
    and `w3` of each expert, and the module has two tensors for all experts. So that class loads the folder, and its
    state is taken. Weights that the files lack are left out. Raises the errors of transformers.
    """
    kind = _class_of(folder)
    if kind is None:
        return None
    with torch.device("meta"):
        own = kind(kind.config_class.from_pretrained(folder)).state_dict()
    if own.keys() >= set(names):
        return None
    module, found = kind.from_pretrained(folder, dtype="auto", local_files_only=True, output_loading_info=True)
    state: dict[str, torch.Tensor] = module.state_dict()
    return {name: tensor for name, tensor in state.items() if name not in found["missing_keys"]}


def _class_of(folder: Path) -> Any:
    """The class that the folder's config names, if transformers is installed and has it."""
    file = folder / "config.json"
    try:
        import transformers

        named = json.loads(file.read_text())["architectures"][0]
    except (ImportError, OSError, ValueError, LookupError, TypeError):
        return None
    return getattr(transformers, str(named), None)
