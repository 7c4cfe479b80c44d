"""Loads a rank's part of a batch in a worker process: fetches samples, collates, checks and cuts them.

Failures are returned, not raised, so that all ranks learn of them when the batch is due.
"""

import contextlib
import copy
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate, default_convert, get_worker_info

from ..errors import EngineError
from .batch import Tensors, named
from .batch_spec import BatchSpec, Sizes
from .generators import Generators

MIXES = "collate_fn draws random numbers, which would be others for the rows that this rank needs than for the batch"
OTHERS = "site-packages", "<frozen", str(Path(__file__).parent.parent)  # files whose lines in a traceback are skipped
CORRECT = "correct the data set, or leave the sample out"


class LoadedBatch(NamedTuple):
    """A loaded batch: the sizes of its axes that are not the example's (None if this rank does not know), and this
    rank's part, or with `is_whole` all of it. `is_end`: there is no further batch.

    `state` is the data set's own, after this batch; `request` is what was asked of a map-style data set.
    """

    sizes: Sizes | None
    tensors: Tensors = {}  # noqa: RUF012  # never written to
    is_whole: bool = False
    is_end: bool = False
    error: str = ""
    state: Any = None
    request: "BatchRequest | None" = None


class BatchRequest(NamedTuple):
    """A batch to load: its epoch and number, the keys of its samples, and the rows that this rank needs of them.
    Samples are `padded` to these sizes."""

    epoch: int
    number: int
    keys: list[Any]
    rows: Sequence[int]
    padded: Sizes | None = None

    @property
    def whole(self) -> "BatchRequest":
        """The request for all rows."""
        return self._replace(rows=range(len(self.keys)))


@dataclass(frozen=True)
class Collator:
    """Makes this rank's part of a batch from samples. `batched`: the items of the data set are batches already.
    `keeps`: it returns the whole batch, which the loader cuts. `ahead` has the parts that this rank needs of batches of
    other sizes, as far as these are known; `pad` pads samples to given sizes."""

    feed: BatchSpec
    names: tuple[str, ...]
    collate: Callable[[Any], Any] | None
    seed: int
    batched: bool
    whole: bool
    keeps: bool = False
    ahead: Mapping[Sizes, BatchSpec] = field(default_factory=dict)
    pad: Callable[[Tensors, Sizes], Tensors] | None = None

    def rows(self, samples: int, padded: Sizes = ()) -> Sequence[int]:
        """The rows of a batch of this size that this rank loads."""
        feed = self._known(self.feed.differing({self.feed.batch: samples, **dict(padded)}))
        return range(samples) if self.whole or self.batched or feed is None else feed.rows

    def _known(self, sizes: Sizes) -> BatchSpec | None:
        return self.ahead.get(sizes) if sizes else self.feed

    def make(self, items: list[Any], job: BatchRequest, own: Generators) -> LoadedBatch | None:
        """The part, made of the items of the request's rows; None if it has to be made of all items: the batch is of
        other sizes, so its program may need other rows."""
        try:
            return self._made(items, job, own)
        except EngineError as error:
            reason = f"batch {job.number} of epoch {job.epoch}: {error.reason}"
            return LoadedBatch(None, error=str(EngineError(reason, error.help)))

    def _made(self, items: list[Any], job: BatchRequest, own: Generators) -> LoadedBatch | None:
        feed = self.feed
        batch = feed.cast(named(self._collated(items, job, own), self.names))
        if self.batched:
            if feed.is_sample(batch):
                reason = "without a batch_size the items of the data set are batches, and this one is a sample"
                raise EngineError(reason, f"give batch_size={feed.samples}")
            sizes, is_whole = feed.sizes_of(batch), True
        else:
            sizes, is_whole = feed.sizes_of(batch, len(job.rows)), len(job.rows) == len(job.keys)
            sizes |= {feed.batch: len(job.keys)} if feed.batch in sizes else {}
        other = feed.differing(sizes)
        known = None if self.keeps else self._known(other)
        if known is not None and (is_whole or list(job.rows) == known.rows):
            return LoadedBatch(other, known.cut(batch, range(known.samples) if self.batched else job.rows))
        return LoadedBatch(other, batch, is_whole=True) if is_whole else None

    def _collated(self, items: list[Any], job: BatchRequest, own: Generators) -> Any:
        own.seed(self.seed, "collate", job.epoch, job.number)
        if in_part := len(items) < len(job.keys):
            own.mark()
        if job.padded is not None and self.pad is not None:
            items = [self.pad(named(item, self.names), job.padded) for item in items]
        collate = self.collate or (default_convert if self.batched else default_collate)
        name = getattr(collate, "__name__", type(collate).__name__)
        with blamed(name, "correct it, or give another collate_fn"):
            batch = collate(items[0] if self.batched else items)
        if in_part and own.has_drawn():
            raise EngineError(MIXES, "give the loader whole=True: each rank then collates the whole batch")
        return batch


class RankDataset:
    """A map-style data set as DataLoader sees it: a key is a batch request, an item the part of that batch."""

    def __init__(self, dataset: Any, maker: Collator) -> None:
        self.dataset, self.maker = dataset, maker
        self.epoch: int | None = None
        self.draws = False  # whether a sample has drawn random numbers

    def __getitem__(self, job: BatchRequest) -> LoadedBatch:
        if self.epoch != job.epoch:
            self.epoch = job.epoch
            begin_epoch(self.dataset, job.epoch)
        with Generators(self.maker.seed, "batch", job.epoch, job.number) as own:
            found = self._made(job, own) or self._made(job.whole, own)
        assert found is not None
        return found._replace(request=job)

    def _made(self, job: BatchRequest, own: Generators) -> LoadedBatch | None:
        try:
            items = self._items(job, own)
        except EngineError as error:
            return LoadedBatch(None, error=str(error))
        return self.maker.make(items, job, own)

    def sample(self, key: Any) -> Any:
        """One sample alone, as in the first epoch."""
        with Generators(self.maker.seed, "sample", 0, key):
            return self._item(key, BatchRequest(0, 0, [key], [0]))

    def _items(self, job: BatchRequest, own: Generators) -> list[Any]:
        """The samples of a request. If one draws random numbers, all are loaded again, each seeded by itself: seeding
        takes longer than loading many samples."""
        keys = [job.keys[row] for row in job.rows]
        if not self.draws:
            own.mark()
            with contextlib.suppress(EngineError):  # with other random numbers it may succeed
                items = [self._item(key, job) for key in keys]
                if not own.has_drawn():
                    return items
                self.draws = True
        items = []
        for key in keys:
            own.seed(self.maker.seed, "sample", job.epoch, key)
            items.append(self._item(key, job))
        return items

    def _item(self, key: Any, job: BatchRequest) -> Any:
        """One sample, fetched alone so that its random numbers are its own."""
        several = getattr(self.dataset, "__getitems__", None)
        try:
            return several([key])[0] if several is not None and not self.maker.batched else self.dataset[key]
        except Exception as error:
            where = f"`dataset[{key!r}]`, of batch {job.number} of epoch {job.epoch}, raised {raised(error)}"
            raise EngineError(where, CORRECT) from error


class SampleStream(IterableDataset[LoadedBatch]):
    """An iterable data set as DataLoader sees it: each worker batches its samples and keeps the rank's parts.

    `start` is the number of batches before the data set's restored state.
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
                    job = BatchRequest(self.epoch, number, items, self.maker.rows(len(items)))
                    made = self.maker.make([items[row] for row in job.rows], job, own)
                    made = made or self.maker.make(items, job.whole, own)
                    assert made is not None
                yield made._replace(state=state_of(self.dataset)) if worker is None else made
        except Exception as error:
            reason = f"the data set raised {raised(error)} in epoch {self.epoch}"
            yield LoadedBatch(None, error=str(EngineError(reason, "correct the data set")))


def begin_epoch(dataset: Any, epoch: int) -> None:
    """Tells the data set the epoch, if it has `set_epoch`."""
    if callable(begin := getattr(dataset, "set_epoch", None)):
        begin(epoch)


def state_of(dataset: Any) -> Any:
    """The position of an iterable data set, if it can tell."""
    state = getattr(dataset, "state_dict", None)
    return copy.deepcopy(state()) if callable(state) and hasattr(dataset, "load_state_dict") else None


@contextlib.contextmanager
def blamed(what: str, change: str) -> Iterator[None]:
    """A context for a call of the user's code, `what`: an exception becomes an EngineError that says where it is
    from."""
    try:
        yield
    except EngineError:
        raise
    except Exception as error:
        raise EngineError(f"{what} raised {raised(error)}", change) from error


def raised(error: BaseException) -> str:
    """The text of an exception, with the last line of code that is not a library's."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not any(other in f.filename for other in OTHERS)]
    said = "".join(traceback.format_exception_only(error)).strip()
    return said + (f"\n  at {own[-1].filename}, line {own[-1].lineno}: {own[-1].line}" if own else "")


# -- the processes, which are DataLoader's -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Workers:
    """The number of worker processes, and DataLoader's other arguments for them: `pin_memory`, `prefetch_factor`
    (batches of each worker), `persistent_workers`, `timeout` (in seconds), `worker_init_fn`, `multiprocessing_context`.
    """

    num_workers: int = 0
    pin_memory: bool = False
    prefetch_factor: int | None = None
    persistent_workers: bool = False
    timeout: float = 0
    worker_init_fn: Callable[[int], None] | None = None
    multiprocessing_context: Any = None

    def loader(self, dataset: Any, jobs: Iterable[BatchRequest] | None) -> "DataLoader[LoadedBatch]":
        """A DataLoader that yields each item as the data set makes it."""
        options = {**vars(self), "persistent_workers": self.persistent_workers and jobs is not None}
        options["worker_init_fn"] = _Start(self.worker_init_fn)
        draws = torch.Generator()  # DataLoader draws from it; the global generator belongs to the user
        return DataLoader(dataset, batch_size=None, sampler=jobs, collate_fn=_as_it_is, generator=draws, **options)

    @classmethod
    def of(cls, loader: "DataLoader[Any]") -> "Workers":
        """The workers of an existing DataLoader."""
        return cls(**{field.name: getattr(loader, field.name) for field in fields(cls)})


def _as_it_is(item: Any) -> Any:
    return item


class _Start:
    """Runs first in a worker: calls the user's own function, to which `get_worker_info()` shows the user's data set."""

    def __init__(self, function: Callable[[int], None] | None) -> None:
        self.function = function

    def __call__(self, worker: int) -> None:
        info: Any = get_worker_info()
        object.__setattr__(info, "dataset", info.dataset.dataset)
        if self.function is not None:
            self.function(worker)
