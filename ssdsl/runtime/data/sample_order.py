"""The order of samples: the keys of each global batch of an epoch, the same on every rank."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

import torch

from ..errors import EngineError
from .generators import Generators, number_of


@dataclass(frozen=True)
class SampleOrder:
    """Batches of a data set's keys: in order, shuffled by seed and epoch, or as the user's sampler says.

    `batch_size` None makes each key a batch.
    """

    samples: int | None
    batch_size: int | None
    shuffle: bool
    drop_last: bool
    sampler: Iterable[Any] | None = None
    batch_sampler: Iterable[list[Any]] | None = None

    def __post_init__(self) -> None:
        for sampler in self._samplers():
            if isinstance(sampler, torch.utils.data.DistributedSampler):
                reason = "a DistributedSampler gives each rank other samples, and the loader needs the global batches"
                raise EngineError(
                    reason, "leave it out and give shuffle=True: the loader cuts each batch for the ranks"
                )

    def __len__(self) -> int:
        """The number of batches in an epoch; raises TypeError if a sampler does not know."""
        if self.batch_sampler is not None:
            return len(self.batch_sampler)  # type: ignore[arg-type]
        samples, size = self._samples(), self.batch_size or 1
        return samples // size if self.drop_last else -(-samples // size)

    def batches(self, seed: int, epoch: int, first: int = 0) -> Iterator[list[Any]]:
        """The batches of an epoch from number `first` on; earlier ones are skipped without a look where possible."""
        if self.sampler is None and self.batch_sampler is None:
            return self._own(seed, epoch, first)
        return islice(self._users(seed, epoch), first, None)

    def _own(self, seed: int, epoch: int, first: int) -> Iterator[list[Any]]:
        samples, size = self._samples(), self.batch_size or 1
        order: range | torch.Tensor = range(samples)
        if self.shuffle:
            order = torch.randperm(samples, generator=torch.Generator().manual_seed(number_of(seed, "order", epoch)))
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
            batches = self._batches()
        for _ in count():
            with own:
                batch = next(batches, None)
            if batch is None:
                return
            yield list(batch)

    def _batches(self) -> Iterator[list[Any]]:
        if self.batch_sampler is not None:
            yield from self.batch_sampler
            return
        assert self.sampler is not None
        size, keys = self.batch_size or 1, iter(self.sampler)
        while len(batch := list(islice(keys, size))) == size or (batch and not self.drop_last):
            yield batch

    def _samplers(self) -> list[Any]:
        found = (self.sampler, self.batch_sampler, getattr(self.batch_sampler, "sampler", None))
        return [sampler for sampler in found if sampler is not None]

    def _samples(self) -> int:
        if self.sampler is not None:
            return len(self.sampler)  # type: ignore[arg-type]
        assert self.samples is not None
        return self.samples
