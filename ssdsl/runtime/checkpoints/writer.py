"""Writes parts of a checkpoint in the format of torch.distributed.checkpoint, through torch's `FileSystemWriter`.

Each rank writes one file with the tensors that it owns, and tells rank 0 what it wrote. From these reports
rank 0 makes `.metadata`: for each tensor its size, its type and its boxes, and for each box the file and the offset in
it.
"""

import ctypes
import io
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path as Folder
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from ..errors import EngineError
from ..step.parts import LocalTensor
from .content import MODEL, Box, Path, Scalar, boxes_of, divided
from .plain import to_json

LARGEST = 64 * 2**20  # bytes of a box: small, so that a rank that needs a part of a tensor reads little else


@dataclass
class Written:
    """A rank's report: for each box that it wrote its tensor's path, its file and offset, and its checksum; and the
    rank's numbers (`scalars`), which rank 0 writes later (`write_scalars`)."""

    paths: dict[str, Path] = field(default_factory=dict)
    items: dict[MetadataIndex, TensorWriteData] = field(default_factory=dict)
    results: list[WriteResult] = field(default_factory=list)
    sums: dict[MetadataIndex, int] = field(default_factory=dict)
    scalars: dict[Path, Scalar] = field(default_factory=dict)


class _TensorSource(DefaultSavePlanner):
    """Gives the writer the tensors of its items, and counts their bytes."""

    def __init__(self, tensors: dict[MetadataIndex, torch.Tensor]) -> None:
        super().__init__()
        self.tensors = tensors
        self.sums: dict[MetadataIndex, int] = {}

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
        tensor = self.tensors[write_item.index].contiguous()
        self.sums[write_item.index] = sum_of(tensor)
        return tensor


def sum_of(tensor: torch.Tensor) -> int:
    """The CRC-32 of a contiguous CPU tensor's bytes."""
    size = tensor.numel() * tensor.element_size()
    return zlib.crc32((ctypes.c_char * size).from_address(tensor.data_ptr())) if size else 0


def write_part(folder: Folder, number: int, tensors: Mapping[Path, LocalTensor]) -> Written:
    """Writes this rank's own tensors, which are on the CPU, as part `number` of a checkpoint."""
    found = Written()
    data: dict[MetadataIndex, torch.Tensor] = {}
    for path, held in tensors.items():
        if held.owns:
            key = ".".join(path)
            found.paths[key] = path
            for box, tensor in _parts(held):
                index = MetadataIndex(key, torch.Size(box.offsets))
                data[index], found.items[index] = tensor, _described(box, held)
    if not data:
        return found
    items = [WriteItem(index, WriteItemType.SHARD, tensor_data=found.items[index]) for index in data]
    writer, planner = FileSystemWriter(folder, sync_files=True, per_thread_copy_ahead=0), _TensorSource(data)
    plan = writer.prepare_global_plan([*[SavePlan([])] * number, SavePlan(items)])[number]  # the place names the file
    found.results, found.sums = writer.write_data(plan, planner).wait(), planner.sums
    return found


def _parts(held: LocalTensor) -> Iterable[tuple[Box, torch.Tensor]]:
    limit = max(1, LARGEST // held.tensor.element_size())
    for box, tensor in boxes_of(held):
        for part in divided(box, limit):
            yield part, part.within(tensor, box.offsets)


def _described(box: Box, held: LocalTensor) -> TensorWriteData:
    chunk = ChunkStorageMetadata(torch.Size(box.offsets), torch.Size(box.sizes))
    return TensorWriteData(chunk, TensorProperties(held.tensor.dtype), torch.Size(held.piece.shape))


def write_scalars(folder: Folder, number: int, parts: list[Written]) -> Written:
    """Writes the ranks' numbers as tensors without axes, as one more part."""
    scalars = {path: value for part in reversed(parts) for path, value in part.scalars.items()}
    tensors = {path: torch.as_tensor(v, dtype=_type(v), device="cpu") for path, v in sorted(scalars.items())}
    return write_part(folder, number, {path: LocalTensor.whole(".".join(path), t) for path, t in tensors.items()})


def _type(value: Scalar) -> torch.dtype:
    """The type that keeps every digit of a number."""
    if isinstance(value, torch.Tensor):
        return value.dtype
    return {bool: torch.bool, int: torch.int64, float: torch.float64}[type(value)]


def sums_text(parts: list[Written]) -> str:
    """The checksum of each box, by its file and offset."""
    found: dict[str, dict[str, int]] = {}
    for part in parts:
        for result in part.results:
            place = result.storage_data
            found.setdefault(place.relative_path, {})[str(place.offset)] = part.sums[result.index]
    return to_json(found)


def metadata_of(parts: list[Written], aliases: Mapping[str, str]) -> Metadata:
    """The `.metadata` of all that the ranks wrote. A tied weight is listed under each of its names, with the same
    bytes.

    Raises EngineError if the ranks wrote more or fewer elements of a tensor than it has.
    """
    tensors: dict[str, TensorStorageMetadata] = {}
    paths: dict[str, Any] = {}
    for part in parts:
        paths |= part.paths
        for index, item in part.items.items():
            known = tensors.setdefault(index.fqn, TensorStorageMetadata(item.properties, item.size, []))
            assert (
                item.chunk is not None and known.size == item.size and known.properties.dtype == item.properties.dtype
            )
            known.chunks.append(item.chunk)
    for name, tensor in tensors.items():
        written, size = sum(chunk.sizes.numel() for chunk in tensor.chunks), tensor.size.numel()
        if written != size:
            raise EngineError(f"the ranks would save {written} elements of `{name}`, which has {size}")
    for alias, first in aliases.items():
        if (known_as := ".".join((*MODEL, first))) in tensors:
            name = ".".join((*MODEL, alias))
            tensors[name], paths[name] = tensors[known_as], (*MODEL, alias)
    return Metadata(dict(sorted(tensors.items())), planner_data=dict(sorted(paths.items())))


def finish_metadata(folder: Folder, parts: list[Written], aliases: Mapping[str, str]) -> None:
    """Writes `.metadata`, which makes the folder a checkpoint. `aliases` map further names of a weight to its first."""
    results = [part.results for part in parts]
    for alias, first in aliases.items():
        name, known_as = ".".join((*MODEL, alias)), ".".join((*MODEL, first))
        same = (r for part in parts for r in part.results if r.index.fqn == known_as)
        results.append([replace(r, index=MetadataIndex(name, r.index.offset)) for r in same])
    FileSystemWriter(folder, sync_files=True).finish(metadata_of(parts, aliases), results)
