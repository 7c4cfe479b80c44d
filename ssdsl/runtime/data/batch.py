"""Batches as a training loop or a data set gives them, made tensors by the names of the model's inputs."""

import hashlib
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from ..errors import EngineError
from ..ranks.control import Control, bytes_of

Table = Mapping[str, Any]
Batch = Mapping[str, torch.Tensor] | Sequence[torch.Tensor] | torch.Tensor
Tensors = dict[str, torch.Tensor]
SAMPLED = 1024  # elements of a tensor that a mark looks at


def named(batch: Any, names: Sequence[str]) -> Tensors:
    """The tensors of a batch by name: a mapping by its keys, a dataclass or named tuple by its fields, a tuple or a
    single tensor in the order of `names`.

    Raises EngineError for other names, or a value that is no tensor.

    >>> sorted(named((torch.zeros(1), torch.zeros(1)), ["x", "y"]))
    ['x', 'y']
    """
    found = {name: value for name, value in _pairs(batch, names).items() if value is not None}
    change = f"give a dictionary with the model's inputs, {_listed(names)}, or a tuple in this order"
    if missing := [name for name in names if name not in found]:
        are = "are" if len(missing) > 1 else "is"
        raise EngineError(f"the batch has {_listed(found)}; {_listed(missing)} {are} missing", change)
    if unknown := [name for name in found if name not in names]:
        reason = f"the batch has {_listed(unknown)}, which the plan was not compiled with"
        raise EngineError(
            reason, f"leave it out in the data set or collate_fn, or add it to the example batch; {change}"
        )
    for name, value in found.items():
        if not isinstance(value, torch.Tensor):
            reason = f"`{name}` of the batch is {kind(value)}, not a tensor"
            raise EngineError(reason, "make tensors in the data set or in collate_fn")
    return {name: found[name] for name in names}


def compare(batch: Mapping[str, torch.Tensor], control: Control) -> None:
    """Raises EngineError, on all ranks, if they were given different batches."""
    digest = hashlib.sha256()
    for name in sorted(batch):
        digest.update(bytes_of(batch[name].detach().cpu()))
    if (other := control.outlier(digest.digest())) is not None:
        raise another_batch(other)


def another_batch(rank: int) -> EngineError:
    """The error for a rank with another batch than rank 0."""
    return EngineError(
        f"rank {rank} was given another batch than rank 0: a step takes the global one, the same on all",
        "give all ranks the same batch, or let `engine.loader(dataset, ...)` load for each what it needs",
    )


def mark_of(batch: Mapping[str, torch.Tensor]) -> int:
    """A number that tells a batch from most others, of a sample of its elements: for each step, as a hash of all of
    them would take too long. It looks at tensors on CPUs alone, as it would have to wait for a GPU.

    >>> x = torch.arange(5000)
    >>> mark_of({"x": x}) == mark_of({"x": x.clone()}) != mark_of({"x": x.flip(0)})
    True
    """
    mark = 0
    for name in sorted(name for name, tensor in batch.items() if tensor.device.type == "cpu"):
        flat = batch[name].detach().reshape(-1)
        mark = zlib.crc32(bytes_of(flat[:: -(-flat.numel() // SAMPLED) or 1].cpu()), mark)
    return mark


def text(dtype: torch.dtype, shape: tuple[int, ...]) -> str:
    """A tensor's type in words.

    >>> text(torch.float32, (2, 3))
    'float32[2, 3]'
    """
    return f"{str(dtype).removeprefix('torch.')}[{', '.join(map(str, shape))}]"


def _pairs(batch: Any, names: Sequence[str]) -> dict[str, Any]:
    if isinstance(batch, Mapping):
        return dict(batch.items())
    if is_dataclass(batch) and not isinstance(batch, type):
        return {field.name: getattr(batch, field.name) for field in fields(batch)}
    if isinstance(batch, tuple) and set(getattr(batch, "_fields", ())) & set(names):
        return dict(zip(batch._fields, batch, strict=True))  # type: ignore[attr-defined]
    if isinstance(batch, torch.Tensor):
        batch = (batch,)
    if not isinstance(batch, tuple | list):
        reason = f"the batch is {kind(batch)}"
        raise EngineError(reason, f"give a dictionary of tensors, or a tuple of them: {_listed(names)}")
    if len(batch) != len(names):
        reason = f"the batch has {len(batch)} values, and the model takes {len(names)}: {_listed(names)}"
        raise EngineError(reason, 'say which are meant with names=("x", "y"), or give a dictionary')
    return dict(zip(names, batch, strict=True))


def _listed(names: Any) -> str:
    return ", ".join(f"`{name}`" for name in names) or "nothing"


def kind(value: Any) -> str:
    """The type of a value in words: `a list`."""
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
