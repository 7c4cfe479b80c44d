"""Loads the part of a batch that a rank needs: fetches samples, collates them, checks and cuts. It runs in workers.

What fails is not raised but told, so that all ranks hear of it when its batch is due.
"""

import contextlib
import copy
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple

from torch.utils.data import IterableDataset, default_collate, default_convert, get_worker_info

from ..errors import EngineError
from .batch import Tensors, named
from .batch_spec import PAD, BatchSpec
from .generators import Generators

MIXES = "collate_fn draws random numbers, which would be others for the rows that this rank needs than for the batch"
OTHERS = "site-packages", "<frozen", str(Path(__file__).parent.parent)  # whose lines say nothing to the user
PAD_A_PART = f"{PAD}; if collate_fn needs all samples of a batch, as to pad to the longest, give the loader whole=True"
CORRECT = "correct the data set, or leave the sample out"


class LoadedBatch(NamedTuple):
    """A batch: how many samples it has (0 at the end; None where this rank does not know), and this rank's part.

    A batch of another size than the program's comes whole. `state` is the data set's own, behind this batch.
    """

    samples: int | None
    tensors: Tensors = {}  # noqa: RUF012  # never written to
    error: str = ""
    state: Any = None


class BatchRequest(NamedTuple):
    """A batch to load: its epoch and number, how many samples it has, and the keys of those that this rank needs."""

    epoch: int
    number: int
    samples: int
    keys: list[Any]


@dataclass(frozen=True)
class Collator:
    """Makes this rank's part of a batch from samples. `batched`: the data set's items are batches already."""

    feed: BatchSpec
    names: tuple[str, ...]
    collate: Callable[[Any], Any] | None
    seed: int
    batched: bool
    whole: bool

    def rows(self, samples: int) -> list[int]:
        """The rows to load of a batch of this size."""
        whole = self.whole or self.batched or samples != self.feed.samples
        return list(range(samples)) if whole else self.feed.rows

    def make(self, items: list[Any], samples: int, epoch: int, number: int, own: Generators) -> LoadedBatch:
        """The part, from the items of its rows."""
        rows = self.rows(samples)
        try:
            batch = named(self._collated(items, samples, epoch, number, own), self.names)
            if self.batched:
                samples = self.feed.size_of(batch)
                rows = list(range(samples))
            if samples != self.feed.samples:
                return LoadedBatch(samples, batch)
            self.feed.check(batch, len(rows), PAD if len(rows) == samples else PAD_A_PART)
            return LoadedBatch(samples, self.feed.cut(batch, rows))
        except EngineError as error:
            return LoadedBatch(
                samples, error=str(EngineError(f"batch {number} of epoch {epoch}: {error.reason}", error.help))
            )

    def _collated(self, items: list[Any], samples: int, epoch: int, number: int, own: Generators) -> Any:
        own.seed(self.seed, "collate", epoch, number)
        if in_part := len(items) < samples:
            own.mark()
        collate = self.collate or (default_convert if self.batched else default_collate)
        try:
            batch = collate(items[0] if self.batched else items)
        except EngineError:
            raise
        except Exception as error:
            name = getattr(collate, "__name__", type(collate).__name__)
            raise EngineError(f"{name} raised {raised(error)}", "correct it, or give another collate_fn") from error
        if in_part and own.has_drawn():
            raise EngineError(MIXES, "give the loader whole=True: each rank then collates the whole batch")
        return batch


class RankDataset:
    """A map-style data set as DataLoader sees it: its items are the parts of batches, its keys the jobs."""

    def __init__(self, dataset: Any, maker: Collator) -> None:
        self.dataset, self.maker = dataset, maker
        self.epoch: int | None = None
        self.draws = False  # whether a sample has drawn random numbers

    def __getitem__(self, job: BatchRequest) -> LoadedBatch:
        maker, (epoch, number, samples, _) = self.maker, job
        if self.epoch != epoch:
            self.epoch = epoch
            begin_epoch(self.dataset, epoch)
        with Generators(maker.seed, "batch", epoch, number) as own:
            try:
                items = self._items(job, own)
            except EngineError as error:
                return LoadedBatch(samples, error=str(error))
            return maker.make(items, samples, epoch, number, own)

    def _items(self, job: BatchRequest, own: Generators) -> list[Any]:
        """The samples. Where one draws random numbers all are made again, each with numbers of its own: seeding takes
        longer than many a sample."""
        if not self.draws:
            own.mark()
            with contextlib.suppress(EngineError):  # with other numbers it may succeed
                items = [self._item(key, job) for key in job.keys]
                if not own.has_drawn():
                    return items
                self.draws = True
        items = []
        for key in job.keys:
            own.seed(self.maker.seed, "sample", job.epoch, key)
            items.append(self._item(key, job))
        return items

    def _item(self, key: Any, job: BatchRequest) -> Any:
        """A sample, by the function for several where there is one: alone, so that its random numbers are its own."""
        several = getattr(self.dataset, "__getitems__", None)
        try:
            return several([key])[0] if several is not None and not self.maker.batched else self.dataset[key]
        except Exception as error:
            where = f"`dataset[{key!r}]`, of batch {job.number} of epoch {job.epoch}, raised {raised(error)}"
            raise EngineError(where, CORRECT) from error


class SampleStream(IterableDataset[LoadedBatch]):
    """An iterable data set as DataLoader sees it: each worker's samples, made batches, of which the parts are kept.

    `start` is how many batches the data set, told by its own state, has behind it.
    """

    def __init__(self, dataset: Any, maker: Collator, batch_size: int, drop_last: bool, epoch: int, start: int) -> None:
        self.dataset, self.maker, self.epoch, self.start = dataset, maker, epoch, start
        self.batch_size, self.drop_last = batch_size, drop_last

    def __iter__(self) -> Iterator[LoadedBatch]:
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker is not None else (self.start, 1)
        seed, own = self.maker.seed, Generators(self.maker.seed, "stream", self.epoch, first)
        try:
            with own:
                begin_epoch(self.dataset, self.epoch)
                samples = iter(self.dataset)
            for number in count(first, step):
                with own:
                    own.seed(seed, "samples", self.epoch, number)
                    items = list(islice(samples, self.batch_size))
                    if not items or (len(items) < self.batch_size and self.drop_last):
                        return
                    kept = [items[row] for row in self.maker.rows(len(items))]
                    made = self.maker.make(kept, len(items), self.epoch, number, own)
                yield made._replace(state=state_of(self.dataset)) if worker is None else made
        except Exception as error:
            reason = f"the data set raised {raised(error)} in epoch {self.epoch}"
            yield LoadedBatch(None, error=str(EngineError(reason, "correct the data set")))


def begin_epoch(dataset: Any, epoch: int) -> None:
    """Tells the data set of an epoch, if it wants to know."""
    if callable(begin := getattr(dataset, "set_epoch", None)):
        begin(epoch)


def state_of(dataset: Any) -> Any:
    """Where an iterable data set is, if it can say."""
    state = getattr(dataset, "state_dict", None)
    return copy.deepcopy(state()) if callable(state) and hasattr(dataset, "load_state_dict") else None


def raised(error: BaseException) -> str:
    """An exception in words, with the place where it was raised: the last that is no library's."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not any(other in f.filename for other in OTHERS)]
    said = "".join(traceback.format_exception_only(error)).strip()
    return said + (f"\n  at {own[-1].filename}, line {own[-1].lineno}: {own[-1].line}" if own else "")
