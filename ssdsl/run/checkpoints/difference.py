"""The difference of two checkpoints: tensors that only one has, other shapes or types, and the largest differences."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ssdsl.run.checkpoints.convert import wrong_checkpoints
from ssdsl.runtime.checkpoints.reader import Checkpoint


@dataclass(frozen=True, slots=True)
class TensorDiffers:
    """A tensor that differs. `largest` is the largest difference of an element, `elements` the number of elements that
    differ; None if elements cannot be compared."""

    name: str
    how: str
    elements: int | None = None
    largest: float | None = None


def differences(first: Checkpoint, second: Checkpoint) -> Iterator[TensorDiffers]:
    """The tensors that differ, in order of names; raises PlanError for a file that cannot be read."""
    for path in sorted(first.tensors.keys() | second.tensors.keys()):
        name = ".".join(path)
        if path not in second.tensors:
            yield TensorDiffers(name, "only in the first")
        elif path not in first.tensors:
            yield TensorDiffers(name, "only in the second")
        elif (found := _compared(first, second, path)) is not None:
            yield found


def _compared(first: Checkpoint, second: Checkpoint, path: tuple[str, ...]) -> TensorDiffers | None:
    name, one, other = ".".join(path), first.tensors[path], second.tensors[path]
    if one.size != other.size:
        return TensorDiffers(name, f"{list(one.size)} and {list(other.size)}")
    with wrong_checkpoints():
        a, b = first.whole(path), second.whole(path)
    types = f"{a.dtype} and {b.dtype}".replace("torch.", "") if a.dtype != b.dtype else ""
    unequal = (a != b) & ~(a.isnan() & b.isnan())
    count = int(unequal.sum())
    if not count and not types:
        return None
    exact = torch.promote_types(torch.promote_types(a.dtype, b.dtype), torch.float64)  # complex where they are
    apart = (a.to(exact) - b.to(exact))[unequal].abs()
    largest = float(apart.nan_to_num(nan=torch.inf).max()) if count else 0.0
    return TensorDiffers(name, types or "values", count, largest)
