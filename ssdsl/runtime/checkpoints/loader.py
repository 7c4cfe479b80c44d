"""Loads a checkpoint into the ranks' tensors, under any plan and any number of ranks."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path as Folder
from typing import Any, Protocol

import torch
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from ..errors import EngineError
from ..ranks.control import Control
from ..step.parts import LocalTensor
from .content import MODEL, STATE, Path, Scalar
from .folder import newest
from .reader import Checkpoint

SHOWN = 5  # mistakes that an error message lists


class StateSource(Protocol):
    """What state is read from: a checkpoint on the disk, or what ranks hold."""

    @property
    def folder(self) -> Any:
        """Its name in errors."""
        ...

    @property
    def facts(self) -> dict[str, Any]:
        """Plain values."""
        ...

    @property
    def tensors(self) -> dict[Path, TensorStorageMetadata]:
        """The sizes and types of the tensors, by their paths."""
        ...

    def under(self, *path: str) -> dict[Path, TensorStorageMetadata]:
        """The tensors whose paths have this prefix, by the rest of their paths."""
        ...

    def read(self, wanted: Mapping[Path, LocalTensor]) -> None:
        """Fills each wanted tensor, converted to its own type."""
        ...


def open_on_all(path: Folder | str, control: Control, aliases: Mapping[str, str] | None = None) -> Checkpoint:
    """Opens the checkpoint in a folder, or the newest of a run, the same on all ranks. Raises EngineError on all.

    A tied weight may have any of its names there; `aliases` map the further names to the first.
    """
    name = b""
    with control.together():
        if control.rank == 0:
            name = str(newest(Folder(path)).relative_to(path)).encode()
    folder = Folder(path) / control.broadcast(name).decode()
    with control.together():
        found = Checkpoint.open(folder)
    return found.named(aliases or {})


def read_on_all(
    checkpoint: StateSource,
    wanted: Mapping[Path, LocalTensor],
    control: Control,
    strict: bool = True,
    cast: bool = False,
) -> None:
    """Reads a checkpoint into the tensors of all ranks; `wanted` are this rank's, by their paths in the checkpoint.
    Raises EngineError on all ranks, before anything is written, if it does not fit.

    Together the ranks must want exactly the model's tensors in the checkpoint, with the same shapes and types. Without
    `strict` names may be missing on either side; with `cast` other number types are converted.
    """
    mine = [[path, held.piece.shape, str(held.tensor.dtype)] for path, held in wanted.items() if held.owns]
    messages = control.gather(json.dumps(mine).encode())
    with control.together():
        if messages is not None:
            all_wanted = {tuple(path): (tuple(shape), dtype) for m in messages for path, shape, dtype in json.loads(m)}
            _check_fits(checkpoint, all_wanted, strict, cast)
    with control.together():
        checkpoint.read({path: held for path, held in wanted.items() if path in checkpoint.tensors})


def _check_fits(
    checkpoint: StateSource, wanted: Mapping[Path, tuple[tuple[int, ...], str]], strict: bool, cast: bool
) -> None:
    """Raises EngineError for a checkpoint of another model; `wanted` are the shapes and dtypes that all ranks want."""
    stored = checkpoint.tensors
    kinds = {path[: len(MODEL)] for path in wanted} & {MODEL}  # empty if only the optimizer's state is read
    missing = [p for p in wanted if p not in stored]
    unexpected = [p for p in stored if p[: len(MODEL)] in kinds and p not in wanted]
    shapes, types = [], []
    for path, (shape, dtype) in wanted.items():
        if path not in stored:
            continue
        if tuple(stored[path].size) != shape:
            shapes.append(f"{_name(path)} is {list(stored[path].size)} there and {list(shape)} here")
        elif (found := str(stored[path].properties.dtype)) != dtype:
            types.append(f"{_name(path)} is {found} there and {dtype} here".replace("torch.", ""))
    folder = checkpoint.folder
    if strict and (missing or unexpected):
        lines = [*_listed("missing in it", map(_name, missing)), *_listed("not in the model", map(_name, unexpected))]
        change = "load it into the model that it was saved from; in Python, `strict=False` loads what both have"
        raise EngineError("\n".join([f"the checkpoint `{folder}` is of another model", *lines]), change)
    if shapes:
        lines = [f"the checkpoint `{folder}` is of another model", *_listed("other shapes", shapes)]
        raise EngineError("\n".join(lines), "make the model as large as the one that was saved")
    if types and not cast:
        lines = [f"the checkpoint `{folder}` has numbers of another type", *_listed("other types", types)]
        raise EngineError("\n".join(lines), "load it with cast=True to convert them")


def _listed(what: str, found: Iterable[str]) -> list[str]:
    """The first few items of a list, in one line.

    >>> _listed("missing in it", "abcdefg")
    ['  missing in it (7): a, b, c, d, e and 2 more']
    """
    names = list(found)
    if not names:
        return []
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return [f"  {what} ({len(names)}): {', '.join(names[:SHOWN])}{more}"]


def _name(path: Path) -> str:
    """A path as users read it: a weight by the model's name, other tensors as `optim.state.fc.weight.exp_avg`."""
    return ".".join(path[1:] if path[:1] == MODEL else path)


def new_state(checkpoint: StateSource, weights: Iterable[LocalTensor]) -> dict[str, dict[str, LocalTensor | Scalar]]:
    """Optimizer state of this rank's weights as the checkpoint has it, by the weight's name, then torch's key
    (`exp_avg`): zeros to read tensors into, and numbers without axes, which are already read.

    A state tensor of its weight's shape is cut as the weight is; one without axes is a number. One that was saved in
    the type of its weight has the type that the weight has here. Raises EngineError for any other shape if this rank
    has only a part of the weight, because no part of the state could be assigned to it.
    """
    found: dict[str, dict[str, LocalTensor | Scalar]] = {}
    numbers: dict[Path, LocalTensor] = {}
    stored_of: dict[str, dict[str, TensorStorageMetadata]] = {}
    for (name, key), stored in checkpoint.under(*STATE).items():
        stored_of.setdefault(name, {})[key] = stored
    for held in weights:
        weight = checkpoint.tensors.get((*MODEL, held.name))
        for key, stored in stored_of.get(held.name, {}).items():
            mine = found.setdefault(held.name, {})
            dtype = stored.properties.dtype
            if weight is not None and dtype == weight.properties.dtype:
                dtype = held.tensor.dtype
            if stored.size == torch.Size(held.piece.shape):
                zeros = torch.zeros(held.tensor.shape, dtype=dtype, device=held.tensor.device)
                mine[key] = LocalTensor(held.name, held.piece, held.span, zeros, held.owns)
            elif not stored.size:
                number = torch.empty((), dtype=stored.properties.dtype)
                mine[key], numbers[*STATE, held.name, key] = number, LocalTensor.whole(held.name, number)
            elif held.span is None and not held.piece.takes:  # this rank has the whole weight
                zeros = torch.zeros(stored.size, dtype=dtype, device=held.tensor.device)
                mine[key] = LocalTensor.whole(held.name, zeros, held.owns)
            else:
                raise EngineError(
                    f"the optimizer's `{key}` of `{held.name}` has the shape {list(stored.size)}, not the weight's, "
                    "so it cannot be cut as the weight is",
                    "load it under a plan that leaves the weight whole",
                )
    checkpoint.read(numbers)
    return found
