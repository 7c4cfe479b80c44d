"""`ssdsl checkpoint show` and `diff`: the contents of a checkpoint, and the differences between two."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ssdsl.show.view import Column, ColumnKind, View

if TYPE_CHECKING:
    from ssdsl.run.checkpoints.difference import TensorDiffers
    from ssdsl.runtime.checkpoints.reader import Checkpoint

TENSORS = (
    Column("tensor", ColumnKind.PATH, "bold cyan"),
    Column("shape"),
    Column("type", style="green"),
    Column("size", ColumnKind.BYTES, key="size_bytes"),
    Column("boxes", ColumnKind.COUNT, drop=1),
    Column("optimizer state", fold=True, key="optimizer_state"),
)
FACTS = (Column("state of the run", ColumnKind.PATH, "bold cyan", key="name"), Column("value", fold=True))
DIFFERENCES = (
    Column("tensor", ColumnKind.PATH, "bold cyan"),
    Column("differs in", fold=True, key="how"),
    Column("elements", ColumnKind.COUNT),
    Column("largest difference", ColumnKind.SMALL),
)
LONGEST = 100  # characters of a value


def tensors_view(checkpoint: "Checkpoint") -> View:
    """A row for each tensor outside of the optimizer's state, with the names of its optimizer state."""
    state: dict[str, list[str]] = {}
    for path in checkpoint.under("optim", "state"):
        state.setdefault(path[0], []).append(path[-1])
    rows = []
    for path, tensor in sorted(checkpoint.tensors.items()):
        if path[0] == "optim":
            continue
        dtype = tensor.properties.dtype
        name = ".".join(path[1:] if path[0] == "model" else path)
        size_bytes = tensor.size.numel() * dtype.itemsize
        keys = ", ".join(sorted(state.get(path[-1], []))) if path[0] == "model" else ""
        shape = "×".join(map(str, tensor.size)) or "one number"
        rows.append((name, shape, str(dtype).removeprefix("torch."), size_bytes, len(tensor.chunks), keys))
    aliases = checkpoint.facts.get("aliases", {})
    notes = tuple(f"{alias} is {first}" for alias, first in aliases.items())
    return View(f"checkpoint {checkpoint.folder}", TENSORS, tuple(rows), notes)


def facts_view(checkpoint: "Checkpoint") -> View:
    """A row for each plain value, with names such as `scheduler.last_epoch`."""
    rows = [(name, value) for name, value in _flat("", checkpoint.facts) if not name.startswith(("aliases", "names"))]
    return View("", FACTS, tuple(rows))


def _flat(name: str, value: Any) -> Iterable[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flat(f"{name}.{key}" if name else str(key), inner)
        return
    if isinstance(value, list) and any(isinstance(inner, dict) for inner in value):
        for number, inner in enumerate(value):
            yield from _flat(f"{name}.{number}", inner)
        return
    text = " ".join(str(value).split())
    yield name, text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def differences_view(found: "Iterable[TensorDiffers]", compared: int) -> View:
    """A row for each tensor that differs; `compared` is the number of tensors compared."""
    rows = tuple((one.name, one.how, one.elements, one.largest) for one in found)
    title = f"{len(rows)} of {compared} tensors differ" if rows else f"all {compared} tensors are equal"
    return View(title, DIFFERENCES, rows)
