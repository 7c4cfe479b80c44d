"""Reads parts of a checkpoint: from each stored box, the elements that wanted boxes overlap. No code from the files
runs.

`.metadata` is a pickle; our unpickler creates only the records that describe tensors. The tensors themselves are read
by `torch.load` with `weights_only`. Any checkpoint of torch.distributed.checkpoint can be read, whoever wrote it.
"""

import io
import pathlib
import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path as Folder
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, ReadItem
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from ..errors import EngineError
from ..step.parts import LocalTensor
from .content import MODEL, Box, Path, boxes_of
from .folder import METADATA, STATE, SUMS, newest
from .plain import from_json
from .writer import sum_of

RECORDS = {
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.serialization": {"_get_layout"},
    "torch": {"Size"},
    "collections": {"OrderedDict"},
    "builtins": {"dict", "list", "set", "tuple"},
}
PATHS = {"PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath"}  # of the folder that was written to
DAMAGED = "load an older checkpoint of the run, or copy this one again"


class _Unpickler(pickle.Unpickler):
    """Creates the records that describe tensors, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if name in RECORDS.get(module, ()):
            return super().find_class(module, name)
        if module == "torch" and isinstance(found := getattr(torch, name, None), torch.dtype | torch.layout):
            return found
        if module.split(".")[0] == "pathlib" and name in PATHS:
            return pathlib.PurePosixPath
        raise pickle.UnpicklingError(f"it asks for `{module}.{name}`, which describes no tensor")


@dataclass
class Checkpoint:
    """A checkpoint on the disk; tensors are read when they are asked for."""

    folder: Folder
    facts: dict[str, Any]
    _names: dict[Path, str] = field(repr=False)
    _metadata: Metadata = field(repr=False)
    _sums: dict[str, dict[str, int]] = field(repr=False)

    @classmethod
    def open(cls, path: Folder | str) -> "Checkpoint":
        """Opens the checkpoint in a folder, or the newest of a run. Raises EngineError if there is none."""
        folder = newest(Folder(path))
        metadata = _read(folder / METADATA, _metadata)
        facts = _read(folder / STATE, _facts) if (folder / STATE).exists() else {}
        sums = _read(folder / SUMS, _facts) if (folder / SUMS).exists() else {}
        paths = metadata.planner_data if isinstance(metadata.planner_data, dict) else {}
        names = {tuple(map(str, paths.get(name, (name,)))): name for name in metadata.state_dict_metadata}
        return cls(folder, facts, names, metadata, sums)

    @cached_property
    def tensors(self) -> dict[Path, TensorStorageMetadata]:
        """The sizes, types and places of the tensors, by their paths."""
        found = {path: self._metadata.state_dict_metadata[name] for path, name in self._names.items()}
        return {path: t for path, t in found.items() if isinstance(t, TensorStorageMetadata)}

    def under(self, *path: str) -> dict[Path, TensorStorageMetadata]:
        """The tensors whose paths have this prefix, by the rest of their paths."""
        return {p[len(path) :]: t for p, t in self.tensors.items() if p[: len(path)] == path}

    def named(self, aliases: Mapping[str, str]) -> "Checkpoint":
        """The checkpoint with each tied weight under its first name alone, by these aliases and the checkpoint's
        own."""
        first = {**self.facts.get("aliases", {}), **aliases}
        names = {p: name for p, name in self._names.items() if p[: len(MODEL)] != MODEL or p[-1] not in first}
        for path, name in self._names.items():
            if path not in names:
                names.setdefault((*path[:-1], first[path[-1]]), name)
        return replace(self, _names=names)

    def whole(self, path: Path) -> torch.Tensor:
        """A tensor in full."""
        stored = self.tensors[path]
        made = torch.empty(stored.size, dtype=stored.properties.dtype)
        self.read({path: LocalTensor.whole(".".join(path), made)})
        return made

    def read(self, wanted: Mapping[Path, LocalTensor]) -> None:
        """Fills each wanted tensor from the checkpoint, converted to the tensor's own type.

        All of them must be in the checkpoint, with the same shapes. Raises EngineError for a damaged file.
        """
        files: dict[str, Copies] = {}
        for path, held in wanted.items():
            for index, box, target in self._copies(path, held):
                place = self._place(index)
                files.setdefault(place.relative_path, {}).setdefault(index, []).append((box, target))
        for name, copies in files.items():
            self._read_file(name, copies)

    def _copies(self, path: Path, held: LocalTensor) -> Iterator[tuple[MetadataIndex, Box, torch.Tensor]]:
        """Yields the copies to the wanted boxes of a tensor: a stored box, a region of it, and the wanted elements."""
        name, stored = self._names[path], self.tensors[path]
        boxes = list(boxes_of(held))
        chunks = [ChunkStorageMetadata(torch.Size(box.offsets), torch.Size(box.sizes)) for box, _ in boxes]
        starts = {tuple(box.offsets): tensor for box, tensor in boxes}
        for item in create_read_items_for_chunk_list(name, stored, chunks):
            assert item.dest_index.offset is not None
            wanted, lengths = starts[tuple(item.dest_index.offset)], tuple(item.lengths)
            target = Box(tuple(item.dest_offsets), lengths).within(wanted, (0,) * len(lengths))
            yield item.storage_index, Box(tuple(item.storage_offsets), lengths), target

    def _place(self, index: MetadataIndex) -> Any:
        try:
            return self._metadata.storage_data[index]
        except (KeyError, TypeError) as error:
            raise EngineError(f"`{self.folder / METADATA}` does not say where `{index.fqn}` is", DAMAGED) from error

    def _read_file(self, name: str, copies: "Copies") -> None:
        file, sums = self.folder / name, self._sums.get(name, {})
        ends = [(place := self._place(index)).offset + place.length for index in copies]
        try:
            if file.resolve().parent != self.folder.resolve():
                raise EngineError(f"`{self.folder / METADATA}` speaks of a file outside of its folder", DAMAGED)
            if (size := file.stat().st_size) < max(ends):
                raise EngineError(f"`{file}` is cut off: it has {size} bytes, and there were {max(ends)}", DAMAGED)
            reader = FileSystemReader(self.folder)
            reader.set_up_storage_reader(self._metadata, is_coordinator=True)
            stored = {index: self._chunk(index) for index in copies}
            expected = {index: sums.get(str(self._place(index).offset)) for index in copies}
            planner = _Scatter(copies, stored, expected)
            reader.read_data(planner.plan(), planner).wait()
        except (EngineError, MemoryError):
            raise
        except FileNotFoundError as error:
            raise EngineError(f"`{file}` is missing", DAMAGED) from error
        except Exception as error:  # torch.load raises many kinds of errors for bytes that are no tensor
            raise EngineError(f"`{file}` is damaged: {error}", DAMAGED) from error

    def _chunk(self, index: MetadataIndex) -> tuple[torch.Size, torch.dtype]:
        stored = self._metadata.state_dict_metadata[index.fqn]
        assert isinstance(stored, TensorStorageMetadata)
        return next(c.sizes for c in stored.chunks if c.offsets == index.offset), stored.properties.dtype


Copies = dict[MetadataIndex, list[tuple[Box, torch.Tensor]]]  # regions of stored boxes, and the wanted elements


class _Scatter(DefaultLoadPlanner):
    """Reads each stored box once, however many wanted boxes overlap it, and copies the regions."""

    def __init__(
        self,
        copies: Copies,
        stored: dict[MetadataIndex, tuple[torch.Size, torch.dtype]],
        sums: dict[MetadataIndex, int | None],
    ) -> None:
        super().__init__()
        self.copies, self.stored, self.sums = copies, stored, sums

    def plan(self) -> LoadPlan:
        """The load plan: every box in full."""
        items = []
        for index, (sizes, _) in self.stored.items():
            start = torch.Size([0] * len(sizes))
            items.append(ReadItem(LoadItemType.TENSOR, index, start, index, start, sizes))
        return LoadPlan(items)

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        sizes, dtype = self.stored[read_item.storage_index]
        return torch.empty(sizes, dtype=dtype)

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        index = read_item.storage_index
        if self.sums[index] is not None and self.sums[index] != sum_of(tensor):
            raise ValueError(f"the bytes of `{index.fqn}` are not those that were written")
        for box, target in self.copies[index]:
            target.copy_(box.within(tensor, (0,) * tensor.dim()))


def _read(file: Folder, parse: Callable[[bytes], Any]) -> Any:
    try:
        return parse(file.read_bytes())
    except MemoryError:
        raise
    except Exception as error:  # a damaged pickle raises anything
        raise EngineError(f"`{file}` cannot be read: {error}", DAMAGED) from error


def _metadata(data: bytes) -> Metadata:
    found = _Unpickler(io.BytesIO(data)).load()
    if not isinstance(found, Metadata):
        raise ValueError(f"it holds a {type(found).__name__}")
    return found


def _facts(data: bytes) -> dict[str, Any]:
    found = from_json(data.decode())
    if not isinstance(found, dict):
        raise ValueError("it holds no object")
    return found
