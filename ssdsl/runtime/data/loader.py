"""Loads global batches; each rank loads only the part that it needs.

The batches and their order are those of a single device, whatever the plan. `for batch in loader` is one epoch.
"""

import inspect
import io
import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import closing
from dataclasses import fields, replace
from functools import partial
from itertools import repeat
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader

from ..errors import EngineError
from ..ranks.control import Control
from .batch import Tensors
from .batch_spec import BatchSpec, Sizes
from .buckets import Buckets, Groups
from .checked_batch import CheckedBatch
from .generators import number_of
from .kinds_of_data import arguments_of, is_stream
from .rank_dataset import BatchRequest, Collator, LoadedBatch, RankDataset, SampleStream, Workers, blamed, raised
from .sample_order import SampleOrder

GIVEN = ("self", "dataset", "feed", "control", "feeds", "batch_size")  # options that the engine sets
Feeds = Callable[[Sizes], BatchSpec | None]
END = LoadedBatch(None, is_end=True)


class Loader:
    """Global batches of a data set, of which a rank loads its part. All ranks make and iterate over it alike.

    `feed` describes the part of a batch that this rank's program needs; `feeds` returns the same for the program of
    other sizes (compiled on demand; None: there is none). Options of `engine.loader`:

    - `dataset`: a map-style or iterable data set of samples, or a DataLoader, whose arguments are taken over.
    - `batch_size`: of the global batch, in samples; None means that the items are batches.
    - `shuffle`, `seed`: in an order that follows from the seed and the epoch.
    - `names`: the input names of samples that are tuples, in order.
    - `sampler`, `batch_sampler`: yield keys of samples, or lists of keys of global batches.
    - `collate_fn`: makes a batch of samples; by default torch's.
    - `drop_last`: drops a smaller last batch.
    - `whole`: loads and collates the whole batch on each rank, for a collate function that needs all samples or draws
      random numbers, or a loop that reads the batches of a stream.
    - `buckets`: lengths of samples, of the axis that they have beside the batch, or by axis: a batch has samples of one
      bucket, padded at their ends with the number that `pad` has for an input. `lengths` of samples are measured if
      they are not given.
    - `workers`: their number and other arguments, of which `engine.loader` takes each by its name.

    Random numbers drawn in `dataset[i]` depend on (seed, epoch, i) only. Mistakes raise EngineError, on all ranks.
    """

    def __init__(
        self,
        dataset: Any,
        feed: BatchSpec,
        control: Control,
        *,
        feeds: Feeds = lambda sizes: None,
        batch_size: int | None,
        shuffle: bool = False,
        seed: int = 0,
        names: Sequence[str] = (),
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[list[Any]] | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        drop_last: bool = True,
        whole: bool = False,
        buckets: Sequence[int] | Mapping[str, Sequence[int]] | None = None,
        pad: Mapping[str, float] | None = None,
        lengths: Sequence[int] | Mapping[str, Sequence[int]] | None = None,
        workers: Workers = Workers(),
    ) -> None:
        if isinstance(dataset, DataLoader):
            own = {"shuffle": shuffle, "sampler": sampler, "batch_sampler": batch_sampler, "collate_fn": collate_fn}
            own["workers"] = workers != Workers()
            if given := [name for name, value in own.items() if value is not None and value is not False]:
                reason = f"a DataLoader has its own {', '.join(given)}"
                raise EngineError(reason, "give that to the DataLoader, or give its data set alone")
            workers, collate_fn = Workers.of(dataset), dataset.collate_fn
            batch_size, sampler, batch_sampler = arguments_of(dataset)
            dataset = dataset.dataset
        if buckets is not None and isinstance(batch_sampler, BatchSampler):
            sampler, batch_sampler = batch_sampler.sampler, None
        if batch_size is None and batch_sampler is not None:
            batch_size = feed.samples
        self.dataset, self.feed, self.control, self.feeds = dataset, feed, control, feeds
        self.seed, self.workers, self.batch_size, self.drop_last = seed, workers, batch_size, drop_last
        with control.together(), blamed("len(dataset)", "correct the data set"):
            self.is_stream = is_stream(dataset, sampler, batch_sampler)
            length = None if self.is_stream or not hasattr(dataset, "__len__") else len(dataset)
            drops = drop_last and batch_size is not None
            self.order = SampleOrder(length, batch_size, shuffle, drops, sampler, batch_sampler)
            self._check_arguments(shuffle or sampler is not None or batch_sampler is not None)
            if buckets is not None:
                self._check_groups(batch_sampler)
            elif pad is not None or lengths is not None:
                raise EngineError("`pad` and `lengths` are for buckets", "give buckets=[512, 1024], or leave them out")
            made = Buckets.of(buckets, pad, feed) if buckets is not None else None
        inputs = tuple(names) or tuple(feed.shapes)
        self.maker = Collator(feed, inputs, collate_fn, seed, batch_size is None, whole, whole and self.is_stream)
        self.groups: Groups | None = None
        if made is not None:
            alone = RankDataset(dataset, self.maker)
            self.groups = Groups.of(made, alone, self.order.samples or 0, lengths, control)
            self.order = replace(self.order, groups=self.groups.numbers)
            self.maker = replace(self.maker, pad=made.padded)
        self.epoch = self.batches = 0  # position of the next batch: its epoch, and how many batches of it were yielded
        self.begun = False  # whether an epoch has begun and not ended
        self.state: Any = None  # the data set's own state, after the last batch
        self._kept: tuple[_Jobs, DataLoader[LoadedBatch]] | None = None

    def _check_arguments(self, is_ordered: bool) -> None:
        if self.is_stream and is_ordered:
            reason = "an iterable data set gives its samples in its own order: it takes no shuffle and no sampler"
            raise EngineError(reason, "shuffle in the data set, or give a map-style one, with __getitem__ and __len__")
        if self.batch_size not in (None, needed := self.feed.samples):
            reason = f"the loader's batches have {self.batch_size} samples, and the program is for {needed}"
            raise EngineError(reason, f"give batch_size={needed}, or an example batch of {self.batch_size} samples")

    def _check_groups(self, batch_sampler: Any) -> None:
        """Raises EngineError for data that cannot be grouped by length."""
        change = "give a map-style data set, with __getitem__ and __len__, and its batch_size"
        if self.is_stream or self.order.samples is None or self.batch_size is None:
            reason = "buckets group the samples of a data set, and this one gives them in its own order, or batches"
            raise EngineError(reason, change)
        if batch_sampler is not None:
            raise EngineError("buckets make batches themselves", f"leave the batch_sampler out; {change}")

    def prepare(self) -> None:
        """Asks for the programs of sizes that will come, so that a mistake in one shows now, not an epoch later; and a
        rank loads only the rows that these need."""
        ahead = {sizes: feed for sizes in self.sizes_ahead if (feed := self.feeds(sizes)) is not None}
        self.maker = replace(self.maker, ahead=ahead)

    def __len__(self) -> int:
        """The number of batches in an epoch; raises TypeError if it is unknown."""
        if self.is_stream:
            raise TypeError("an iterable data set has no length")
        return len(self.order)

    @property
    def sizes_ahead(self) -> list[Sizes]:
        """The sizes of batches that will come and are not the example's, as far as they are known now: those of
        buckets, and of smaller last batches."""
        if self.groups is not None:
            return self.groups.sizes_ahead(self.order, self.feed)
        plain = self.order.sampler is None and self.order.batch_sampler is None
        if self.drop_last or self.batch_size is None or self.order.samples is None or not plain:
            return []
        rest = self.order.samples % self.batch_size
        return [((self.feed.batch, rest),)] if rest else []

    @property
    def left_out(self) -> int:
        """The number of samples of an epoch that are dropped because they make no whole batch, though a DataLoader
        would give them; 0 if that is unknown."""
        batches, keys = self.order.batch_sampler, self.order.samples
        if isinstance(batches, BatchSampler):
            keys = len(batches.sampler) if isinstance(batches.sampler, Sized) and not batches.drop_last else None
        elif batches is not None or self.order.sampler is not None:
            return 0
        return keys % self.batch_size if keys and self.batch_size and self.drop_last else 0

    def __iter__(self) -> Iterator[CheckedBatch]:
        """One epoch, or the rest of the one that `load_state_dict` restored. An epoch that the loop left early is not
        continued."""
        if self.begun:
            self.epoch, self.batches = self.epoch + 1, 0
        self.begun = True
        self._check_same_data()
        given, feed = self.batches, self.feed
        try:
            with closing(self._loaded()) as source:
                while (loaded := self._next(source)) is not None:
                    if self.feed is not feed:
                        raise EngineError(
                            "the plan has changed, and this loop's batches are cut as the old one needs them",
                            "leave the loop behind `engine.replan`, and begin another one: it goes on with the next "
                            "batch",
                        )
                    self.batches += 1
                    self.state = loaded.state
                    if (part := self._part(loaded)) is not None:
                        given += 1
                        yield part
        except EngineError:
            self.close()
            raise
        if given == 0:
            raise EngineError(*self._nothing())
        self.epoch, self.batches, self.begun, self.state = self.epoch + 1, 0, False, None

    def epochs(self, end: int | None = None) -> Iterator[CheckedBatch]:
        """The batches of all epochs before `end`, or without end; a resumed loader continues where it was."""
        while end is None or self.epoch < end:
            yield from self

    def close(self) -> None:
        """Ends the workers that are kept from one epoch to the next."""
        self._kept = None

    def refeed(self, *, goes_on: bool) -> None:
        """From the next loop on, loads the parts that the program needs now; it begins where the last one was if it
        `goes_on`. Called by all ranks alike."""
        feed = self.feeds(())
        assert feed is not None, "there is a program for the example's sizes"
        if self.is_stream and hasattr(self.dataset, "state_dict"):
            self.state = self._shared(self.state)  # a rank that needed no batch has none
        self.feed, self._kept = feed, None
        self.begun = self.begun and not goes_on
        self.maker = replace(self.maker, feed=feed)
        self.prepare()

    # -- the state -----------------------------------------------------------------------------------------------------

    def state_dict(self, after: CheckedBatch | None = None) -> dict[str, Any]:
        """The loader's position: after the last batch that it yielded, or after a given one. Called by all ranks
        alike."""
        state = dict(after.position) if after is not None else self._position()
        if self.is_stream and hasattr(self.dataset, "state_dict"):
            state["dataset"] = self._shared(state["dataset"])
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a position: the next batches are those of an uninterrupted run."""
        for name in ("samples of a batch", "samples", "buckets"):
            mine = self._position()[name]
            if state.get(name) != mine:  # earlier versions had no buckets
                reason = f"the data have {mine} {name}, and those of the checkpoint had {state.get(name)}"
                raise EngineError(reason, "give the loader the data set and the batch size of the checkpoint")
        self.epoch, self.batches, self.seed = state["epoch"], state["batches"], state["seed"]
        self.state, self.begun = state["dataset"], False
        self.maker = replace(self.maker, seed=self.seed)
        self._kept = None

    def _position(self) -> dict[str, Any]:
        facts = {"samples of a batch": self.feed.samples, "samples": self.order.samples, "dataset": self.state}
        lengths = self.groups.buckets.lengths if self.groups is not None else None
        facts["buckets"] = {axis: list(own) for axis, own in lengths.items()} if lengths is not None else None
        return {"epoch": self.epoch, "batches": self.batches, "seed": self.seed, **facts}

    def _shared(self, state: Any) -> Any:
        """The state of an iterable data set, from a rank that has it."""
        buffer = io.BytesIO()
        torch.save(state, buffer)
        said = self.control.all_gather(buffer.getvalue() if state is not None else b"")
        mine = next((text for text in said if text), None)
        return torch.load(io.BytesIO(mine), weights_only=True) if mine is not None else None

    # -- one batch -----------------------------------------------------------------------------------------------------

    def _next(self, source: Iterator[LoadedBatch]) -> LoadedBatch | None:
        """The next batch, once all ranks have it; None at the end. All ranks know its sizes."""
        try:
            loaded = next(source, END)
        except Exception as error:
            loaded = LoadedBatch(None, error=str(self._failed(error)))
        if self.control.vote(loaded.error or None, more=not loaded.is_end and loaded.sizes in (None, ())):
            return loaded._replace(sizes=())
        known = json.dumps(loaded.sizes).encode() if loaded.sizes is not None else b""
        said = self.control.all_gather(b"null" if loaded.is_end else known)
        told = {text: rank for rank, text in reversed(list(enumerate(said))) if text}
        found = {_sizes(text): rank for text, rank in told.items()}
        if len(found) > 1:
            raise EngineError(*self._apart(found))
        (sizes,) = found
        return loaded._replace(sizes=sizes) if sizes is not None else None

    def _apart(self, found: dict[Sizes | None, int]) -> tuple[str, str]:
        """The error and its help for a batch of other sizes on some ranks; `found` has the first rank of each."""
        usual = ((self.feed.batch, self.feed.samples),)
        words = {
            rank: "no samples" if sizes is None else self.feed.counted(sizes or usual) for sizes, rank in found.items()
        }
        told = ", ".join(f"{words[rank]} on rank {rank}" for rank in sorted(words))
        reason = f"batch {self.batches} of epoch {self.epoch} is not the same on all ranks: {told}"
        change = "the data set must give every rank the same samples, in the same order"
        if None not in found:
            change += "; a collate_fn that pads to the longest sample needs whole=True"
        return reason, change

    def _samples(self, sizes: Sizes) -> int:
        return dict(sizes).get(self.feed.batch, self.feed.samples)

    def _failed(self, error: Exception) -> EngineError:
        """The error for an exception that the DataLoader raised itself: a worker process ended, or a sampler failed.

        A worker that ends while it hands over a batch shows as a broken connection, otherwise as a RuntimeError.
        """
        broken = isinstance(error, EOFError | ConnectionError) and self.workers.num_workers
        if broken or str(error).startswith("DataLoader worker"):
            help = "correct the data set, or use fewer workers if the system ran out of memory"
            return EngineError("loading failed: a worker process ended", help)
        return EngineError(f"loading failed: {raised(error)}", "correct the data set")

    def _part(self, loaded: LoadedBatch) -> CheckedBatch | None:
        """This rank's part of a batch; None if the batch is dropped. A batch of other sizes is cut for its own
        program."""
        sizes = loaded.sizes
        assert sizes is not None
        if self._samples(sizes) < self.feed.samples and self.drop_last:
            return None
        feed = self.feeds(sizes) if sizes else self.feed
        if feed is None:
            takes = tuple((axis, self.feed.sizes[axis]) for axis, _ in sizes)
            reason = f"batch {self.batches - 1} has {self.feed.counted(sizes)}"
            reason += f", and the program is for {self.feed.counted(takes)}"
            raise EngineError(reason, "make all batches alike: drop a smaller one (drop_last=True), pad to one length")
        if not loaded.is_whole and not loaded.tensors and not feed.is_idle:  # idle in the example's program alone
            whole = self._whole(feed, loaded, next(iter(feed.pieces)))
            loaded = loaded._replace(tensors=whole, is_whole=True)
        if loaded.is_whole:
            parts = feed.cut(loaded.tensors, range(feed.samples))
        else:
            parts, loaded = loaded.tensors, loaded._replace(tensors={})
        return CheckedBatch(parts, feed, self, self._position(), partial(self._whole, feed, loaded))

    def _whole(self, feed: BatchSpec, loaded: LoadedBatch, name: str) -> Tensors:
        """All inputs of a batch, which this rank has loaded, or loads again. Raises EngineError, on this rank alone."""
        if loaded.tensors:
            return loaded.tensors
        if loaded.request is None:
            raise EngineError(
                f"rank {self.control.rank} has not loaded all of `{name}`, and a stream gives its samples only once",
                "give the loader whole=True, so that each rank keeps the whole batch; `batch.samples` and "
                "`batch.shapes` say on every rank what the whole batch has",
            )
        maker = replace(self.maker, feed=replace(feed, pieces=feed.wholes()), whole=True)
        again = RankDataset(self.dataset, maker)[loaded.request.whole]
        if again.error:
            raise EngineError(again.error)
        return again.tensors

    def _loaded(self) -> Generator[LoadedBatch, None, None]:
        """This rank's parts from the current batch on. A rank that needs nothing only counts."""
        if self.is_stream:
            is_idle = self.feed.is_idle and not self.maker.keeps
            yield from repeat(LoadedBatch(None)) if is_idle else self._stream()
            return
        if self.feed.is_idle:
            jobs = _Jobs(self.order, self.maker, self.groups)
            jobs.epoch, jobs.first = self.epoch, self.batches
            yield from (LoadedBatch(None, request=job) for job in jobs)
            return
        if self._kept is None:
            jobs = _Jobs(self.order, self.maker, self.groups)
            self._kept = jobs, self.workers.loader(RankDataset(self.dataset, self.maker), jobs)
        jobs, loader = self._kept
        jobs.epoch, jobs.first = self.epoch, self.batches
        yield from loader

    def _stream(self) -> Iterator[LoadedBatch]:
        """Batches of an iterable data set: resumed by the data set's own state, else by loading again what was yielded
        before."""
        behind, start = self.batches, 0
        if behind and self.state is not None and not self.workers.num_workers:
            self.dataset.load_state_dict(self.state)
            behind, start = 0, behind
        stream = SampleStream(self.dataset, self.maker, self.batch_size or 1, self.drop_last, self.epoch, start)
        source = iter(self.workers.loader(stream, None))
        for _ in range(behind):
            next(source)
        yield from source

    # -- agreement of all ranks ---------------------------------------------------------------------------------------

    def _check_same_data(self) -> None:
        """Raises EngineError unless all ranks have the same data, and are at the same batch."""
        facts = {"samples": self.order.samples, "of a batch": self.batch_size, "shuffled": self.order.shuffle}
        facts |= {"seed": self.seed, "epoch": self.epoch, "batches behind": self.batches}
        if self.groups is not None:
            facts |= {"buckets": self._position()["buckets"], "lengths": number_of(self.groups.numbers)}
        if (found := self.control.difference(facts)) is not None:
            reason = f"the ranks' loaders differ in `{found[0]}`: {found[1]}"
            raise EngineError(reason, "make the same loader, of the same data, on every rank")

    def _nothing(self) -> tuple[str, str]:
        """The error and its help for an epoch without a batch."""
        reason = f"the data gave no batch in epoch {self.epoch}"
        if isinstance(self.dataset, Iterator):
            return f"{reason}: a generator runs only once", "give an object whose __iter__ begins anew"
        if self.drop_last and self.order.samples:
            reason += f": {self.order.samples} samples make no batch of {self.feed.samples}, and the rest is dropped"
        return reason, f"give at least {self.feed.samples} samples, or drop_last=False"


class _Jobs:
    """The requests of an epoch from a batch on; `epoch` and the first batch are set before iteration. It holds no
    reference to its loader, because workers end with the last reference to the loader."""

    def __init__(self, order: SampleOrder, maker: Collator, groups: Groups | None) -> None:
        self.order, self.maker, self.groups = order, maker, groups
        self.epoch = self.first = 0

    def __iter__(self) -> Iterator[BatchRequest]:
        for number, keys in enumerate(self.order.batches(self.maker.seed, self.epoch, self.first), self.first):
            padded = self.groups.sizes(keys[0]) if self.groups is not None else None
            yield BatchRequest(self.epoch, number, keys, self.maker.rows(len(keys), padded or ()), padded)


def _sizes(text: bytes) -> Sizes | None:
    """Sizes that another rank has sent; None for the end of the data."""
    said = json.loads(text)
    return None if said is None else tuple((axis, size) for axis, size in said)


def loader_options(options: dict[str, Any]) -> dict[str, Any]:
    """Options of a Loader, with those of its workers collected in one. Raises EngineError for an unknown option."""
    mine = [name for name in inspect.signature(Loader.__init__).parameters if name not in GIVEN]
    workers = [field.name for field in fields(Workers)]
    if unknown := [name for name in options if name not in {*mine, *workers}]:
        has = ", ".join(["batch_size", *(name for name in mine if name != "workers"), *workers])
        raise EngineError(f"a loader has no option `{unknown[0]}`", f"its options are {has}")
    rest = {name: value for name, value in options.items() if name not in workers}
    if len(rest) < len(options):
        rest["workers"] = Workers(**{name: value for name, value in options.items() if name in workers})
    return rest
