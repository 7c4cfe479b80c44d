"""The order of samples: the keys of each global batch of an epoch, the same on every rank."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

import torch
from torch.utils.data import BatchSampler

from ..errors import EngineError
from .generators import Generators, number_of


@dataclass(frozen=True)
class SampleOrder:
    """Batches of a data set's keys: in order, shuffled by seed and epoch, or as the user's sampler says.

    `batch_size` None makes each key a batch. With `groups`, a number for each key, a batch has keys of one group.
    """

    samples: int | None
    batch_size: int | None
    shuffle: bool
    drop_last: bool
    sampler: Iterable[Any] | None = None
    batch_sampler: Iterable[list[Any]] | None = None
    groups: Sequence[int] | None = None

    def __post_init__(self) -> None:
        for sampler in self._samplers():
            if isinstance(sampler, torch.utils.data.DistributedSampler):
                reason = "a DistributedSampler gives each rank other samples, and the loader needs the global batches"
                raise EngineError(
                    reason, "leave it out and give shuffle=True: the loader cuts each batch for the ranks"
                )

    def __len__(self) -> int:
        """The number of batches in an epoch; raises TypeError if a sampler does not know."""
        if self.groups is None:
            return len(self._source)
        if self.sampler is not None:
            raise TypeError("a sampler does not say how many samples it gives of each group")
        return sum(whole + (rest > 0 and not self.drop_last) for whole, rest in self.batches_of_groups().values())

    def batches_of_groups(self) -> dict[int, tuple[int, int]]:
        """For each group, its number of whole batches in an epoch, and the samples that are left."""
        counts = sorted(Counter(self.groups or ()).items())
        return {group: divmod(n, self.batch_size or 1) for group, n in counts}

    def batches(self, seed: int, epoch: int, first: int = 0) -> Iterator[list[Any]]:
        """The batches of an epoch from number `first` on; earlier ones are skipped without a look where possible."""
        if self.sampler is None and self.batch_sampler is None:
            return self._own(seed, epoch, first)
        return islice(self._users(seed, epoch), first, None)

    def _own(self, seed: int, epoch: int, first: int) -> Iterator[list[Any]]:
        assert self.samples is not None
        samples, size = self.samples, self.batch_size or 1
        order: range | torch.Tensor = range(samples)
        if self.shuffle:
            order = torch.randperm(samples, generator=torch.Generator().manual_seed(number_of(seed, "order", epoch)))
        if self.groups is not None:
            yield from islice(self._grouped(map(int, order)), first, None)
            return
        for batch in range(first, len(self)):
            keys = order[batch * size : (batch + 1) * size]
            yield keys.tolist() if isinstance(keys, torch.Tensor) else list(keys)

    def _users(self, seed: int, epoch: int) -> Iterator[list[Any]]:
        """The keys of the user's sampler; the generators that it draws from are seeded by the epoch."""
        for sampler in self._samplers():
            if callable(begin := getattr(sampler, "set_epoch", None)):
                begin(epoch)
            if isinstance(generator := getattr(sampler, "generator", None), torch.Generator):
                generator.manual_seed(number_of(seed, "sampler", epoch))
        with (own := Generators(seed, "order", epoch)):
            batches = iter(self._source) if self.groups is None else self._grouped(self.sampler or ())
        for _ in count():
            with own:
                batch = next(batches, None)
            if batch is None:
                return
            yield list(batch)

    def _grouped(self, keys: Iterable[Any]) -> Iterator[list[Any]]:
        """Batches of keys of one group, each as soon as it is full; at the end the rest of each group."""
        assert self.groups is not None
        begun: dict[int, list[Any]] = {}
        for key in keys:
            batch = begun.setdefault(self.groups[key], [])
            batch.append(key)
            if len(batch) == self.batch_size:
                yield begun.pop(self.groups[key])
        if not self.drop_last:
            yield from (begun[group] for group in sorted(begun))

    @property
    def _source(self) -> Any:
        """The batches of an epoch that is not shuffled."""
        if self.batch_sampler is not None:
            return self.batch_sampler
        keys: Any = range(self.samples or 0) if self.sampler is None else self.sampler
        return BatchSampler(keys, self.batch_size or 1, self.drop_last)

    def _samplers(self) -> list[Any]:
        found = (self.sampler, self.batch_sampler, getattr(self.batch_sampler, "sampler", None))
        return [sampler for sampler in found if sampler is not None]
