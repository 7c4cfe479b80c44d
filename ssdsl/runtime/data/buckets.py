"""Groups samples by length: a batch has samples of one bucket, each padded to the bucket's length.

A program is compiled for each length of a batch, so samples of any length need a few lengths to be padded to.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch.nn import functional as F

from ..errors import EngineError
from ..ranks.control import Control
from .batch import Tensors, named
from .batch_spec import BatchSpec, Sizes
from .rank_dataset import RankDataset
from .sample_order import SampleOrder

PADDING = {  # by the names of inputs of transformers; -100 is the label that a cross entropy ignores
    "labels": -100,
    **dict.fromkeys(("input_ids", "attention_mask", "token_type_ids", "position_ids"), 0),
    **dict.fromkeys(("decoder_input_ids", "decoder_attention_mask"), 0),
}


@dataclass(frozen=True)
class Buckets:
    """The lengths of buckets, ascending, by axis; the axes of a sample of each input, and what each is padded with."""

    lengths: dict[str, tuple[int, ...]]
    axes: dict[str, tuple[str, ...]]
    pad: dict[str, float]

    @classmethod
    def of(cls, buckets: Any, pad: Mapping[str, float] | None, feed: BatchSpec) -> "Buckets":
        """The buckets of a loader's arguments. Raises EngineError for an axis or an input that the model does not have,
        or an input of which nothing says what it is padded with."""
        axes = {name: tuple(a for a in own if a != feed.batch) for name, own in feed.axes.items()}
        lengths = _lengths(buckets, axes)
        for axis in lengths:
            if not any(axis in own for own in axes.values()):
                there = ", ".join(f"`{a}`" for own in axes.values() for a in own) or "none"
                raise EngineError(f"no input has an axis `{axis}` to group by", f"the axes of samples are {there}")
        padded = [name for name, own in axes.items() if not lengths.keys().isdisjoint(own)]
        given = dict(pad or {})
        if unknown := [name for name in given if name not in padded]:
            reason = f"`{unknown[0]}` is no input that buckets pad"
            raise EngineError(reason, f"they pad {', '.join(f'`{name}`' for name in padded)}")
        if lacking := [name for name in padded if name not in {**PADDING, **given}]:
            example = ", ".join(f'"{name}": 0' for name in lacking)
            reason = f"nothing says what `{lacking[0]}` is padded with"
            change = f"give pad={{{example}}}, with numbers that the model leaves out, such as -100 for labels"
            raise EngineError(reason, change)
        return cls(lengths, axes, {name: given.get(name, PADDING.get(name, 0)) for name in padded})

    @property
    def all(self) -> list[Sizes]:
        """All buckets: an axis with its length, for each axis."""
        return [tuple(zip(self.lengths, one, strict=True)) for one in product(*self.lengths.values())]

    def bucket(self, lengths: Sequence[int], sample: str) -> int:
        """The number of the bucket of a sample with these lengths along the axes. Raises EngineError if it is longer
        than any."""
        found = []
        for (axis, own), length in zip(self.lengths.items(), lengths, strict=True):
            fit = next((n for n in own if n >= length), None)
            if fit is None:
                reason = f"{sample} has {length} along `{axis}`, and the longest bucket {own[-1]}"
                raise EngineError(reason, "add a bucket, or shorten or leave out such samples in the data set")
            found.append((axis, fit))
        return self.all.index(tuple(found))

    def lengths_of(self, sample: Tensors) -> list[int]:
        """The length of a sample along each axis; the longest, if its inputs differ."""
        return [max(self._along(axis, sample), default=0) for axis in self.lengths]

    def _along(self, axis: str, sample: Tensors) -> Iterable[int]:
        for name, tensor in sample.items():
            for own, size in zip(self.axes[name], tensor.shape, strict=False):
                if own == axis:
                    yield size

    def padded(self, sample: Tensors, sizes: Sizes) -> Tensors:
        """A sample in which each input is padded at its end to these sizes. Raises EngineError if it is longer."""
        return {name: self._padded(name, tensor, dict(sizes)) for name, tensor in sample.items()}

    def _padded(self, name: str, tensor: torch.Tensor, sizes: Mapping[str, int]) -> torch.Tensor:
        more = []
        for axis, size in zip(self.axes[name], tensor.shape, strict=False):
            wanted = sizes.get(axis, size)
            if size > wanted:
                reason = f"`{name}` of a sample has {size} along `{axis}`, and its bucket {wanted}"
                raise EngineError(reason, "give the loader `lengths` that samples never exceed: they differ here")
            more.append(wanted - size)
        flat = [n for after in reversed(more) for n in (0, after)]  # F.pad begins with the last axis
        return F.pad(tensor, flat, value=self.pad[name]) if any(more) else tensor


def _lengths(buckets: Any, axes: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[int, ...]]:
    """The lengths by axis; a list is of the one axis that samples have."""
    if not isinstance(buckets, Mapping):
        there = list(dict.fromkeys(a for own in axes.values() for a in own))
        if len(there) != 1:
            named_axes = ", ".join(f"`{a}`" for a in there) or "none"
            reason = f"the buckets are of no axis, and samples have several: {named_axes}"
            raise EngineError(reason, "name it, buckets={'seq': [512, 1024]}; `axes` of ssdsl.engine names axes")
        buckets = {there[0]: buckets}
    found = {}
    for axis, given in buckets.items():
        numbers = list(given) if isinstance(given, Iterable) else [given]
        if not numbers or not all(isinstance(n, int) and n > 0 for n in numbers):
            raise EngineError(f"the buckets of `{axis}` are {given!r}", "give lengths, such as [512, 1024, 2048]")
        found[axis] = tuple(sorted(set(numbers)))
    return found


@dataclass(frozen=True)
class Groups:
    """The buckets, and the number of the bucket of each sample."""

    buckets: Buckets
    numbers: tuple[int, ...]

    @classmethod
    def of(cls, buckets: Buckets, dataset: RankDataset, samples: int, lengths: Any, control: Control) -> "Groups":
        """Groups by `lengths`: a number for each sample, or such numbers by axis. If None, they are measured: each rank
        loads its share of the samples once. Called by all ranks alike; raises EngineError."""
        with control.together():
            mine = range(control.rank, samples, control.size)
            given = None if lengths is None else _given(lengths, buckets, samples)
            found = [_measured(dataset, key, buckets) for key in mine] if given is None else given
            numbers = [buckets.bucket(own, f"sample {key}") for key, own in _keyed(found, mine, given)]
        if given is not None:
            return cls(buckets, tuple(numbers))
        every = [0] * samples
        for rank, told in enumerate(control.all_gather(json.dumps(numbers).encode())):
            every[rank :: control.size] = json.loads(told)
        return cls(buckets, tuple(every))

    def sizes(self, key: int) -> Sizes:
        """The sizes of the bucket of a sample."""
        return self.buckets.all[self.numbers[key]]

    def sizes_ahead(self, order: SampleOrder, feed: BatchSpec) -> list[Sizes]:
        """The sizes of an epoch's batches that are not the example's. With a sampler, those of whole batches."""
        found: list[Sizes] = []
        for number, (batches, rest) in order.batches_of_groups().items():
            bucket = dict(self.buckets.all[number])
            if batches or order.sampler is not None:
                found.append(feed.differing(bucket))
            if rest and not order.drop_last and order.sampler is None:
                found.append(feed.differing({feed.batch: rest, **bucket}))
        return [sizes for sizes in dict.fromkeys(found) if sizes]


def _keyed(found: list[list[int]], mine: range, given: Any) -> Iterable[tuple[int, list[int]]]:
    return zip(mine if given is None else range(len(found)), found, strict=True)


def _measured(dataset: RankDataset, key: int, buckets: Buckets) -> list[int]:
    return buckets.lengths_of(named(dataset.sample(key), dataset.maker.names))


def _given(lengths: Any, buckets: Buckets, samples: int) -> list[list[int]]:
    by_axis = lengths if isinstance(lengths, Mapping) else dict.fromkeys(list(buckets.lengths)[:1], lengths)
    columns = []
    for axis in buckets.lengths:
        if axis not in by_axis or len(by_axis[axis]) != samples:
            has = len(by_axis[axis]) if axis in by_axis else "no"
            reason = f"`lengths` has {has} lengths along `{axis}`, and the data set {samples} samples"
            raise EngineError(reason, "give the length of each sample, by axis if buckets are of several")
        columns.append([int(n) for n in by_axis[axis]])
    return [list(own) for own in zip(*columns, strict=True)]
