"""Finds the memory of a running backward: from the last kernel to the first, gradients are made, kept tensors freed.

All sizes are bytes on one device.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import NamedTuple

from ssdsl.ir.value import Name
from ssdsl.record import Record
from ssdsl.simulate.price.fusion import Launch

Sizes = dict[str, int]  # bytes by storage: views of one tensor count once


class GradientBucket(Record):
    """The concatenated gradients of these weights, as a program reduces them. The bucket is allocated with the first
    gradient of a step; if it `ends` with the task, with the first one of each backward."""

    weights: tuple[Name, ...]
    size_bytes: int
    ends: bool


class _Moment(NamedTuple):
    """A moment of a backward: `made` bytes are allocated, and those of the gradients of `weights` that stay; then
    `gone` bytes are freed. With `in_place` nothing is allocated if as much is freed."""

    made: int
    weights: tuple[Name, ...]
    gone: int
    in_place: bool = False


class WithinBackward:
    """A walk through the backward of a function. `sections` has, for each section in order, its kernels and whether it
    is recomputed.

    - `keeps` gives the storages that a kernel keeps for its backward, `gathers` those that are gathered again for it,
      `remakes` those that recomputed sections make again for it, by the section's number, `between` the bytes that its
      backward takes only while it runs. `held` are the storages that exist when backward begins.
    - `learning` has the bytes of the gradients of values, `weights` those of weights before they are sharded, and
      `stays` the part of these that stays on the device. The weights of `anew` get a new gradient in each backward,
      others only in the first one of a step: later ones are added to it.
    - `root` gives the storage of a value.
    - `conversions` are the results and sources of conversions between kernels, in order. When the backward of all
      readers of a result has run, its gradient is converted to that of the source.
    - The gradient of a weight moves into its bucket, one of `buckets`, when the backward of all kernels that read the
      weight has run.
    """

    def __init__(
        self,
        sections: Sequence[tuple[Sequence[Launch], bool]],
        keeps: Callable[[Launch], Sizes],
        gathers: Callable[[Launch], Sizes],
        remakes: Callable[[Launch], Mapping[int, Sizes]],
        between: Callable[[Launch], int],
        held: Sizes,
        learning: Mapping[Name, int],
        weights: Mapping[Name, int],
        stays: Mapping[Name, int],
        anew: Set[Name],
        root: Callable[[Name], str],
        conversions: Sequence[tuple[Name, Name]],
        buckets: Sequence[GradientBucket],
    ) -> None:
        self.launches = [launch for launches, _ in sections for launch in launches]
        self.between = between
        self.learning, self.weights, self.stays, self.anew, self.root = learning, weights, stays, anew, root
        self.bucket_of = {weight: bucket for bucket in buckets for weight in bucket.weights}
        self.stay_bytes = sum(stays.values()) + sum(bucket.size_bytes for bucket in buckets)
        reads = ((r, number) for number, launch in reversed(list(enumerate(self.launches))) for r in launch.reads)
        # by weight in a bucket, the first kernel that reads it: its backward is the last to add to the gradient
        self.lands = {r: number for r, number in reads if r in self.bucket_of}
        self.again: dict[int, int] = {}  # bytes that are recomputed, or gathered, before the backward of a kernel
        self.releases: dict[int, int] = {}  # bytes that are freed after it: no kernel before it keeps them
        first: dict[str, int] = {}
        gathered: dict[str, tuple[int, int, int]] = {}  # the last kernel and the first that read a storage, its bytes
        runs: dict[int, int] = {}  # by section, the kernel before whose backward it runs again, if not its own last one
        remade: dict[int, Sizes] = {}  # by section, the results that it makes again
        for number, launch in enumerate(self.launches):
            for at, results in remakes(launch).items():
                runs[at] = number
                remade.setdefault(at, {}).update(results)
        begin, after = 0, dict[int, int]()
        for at, (launches, recompute) in enumerate(sections):
            made: Sizes = {}
            for number, launch in enumerate(launches, start=begin):
                kept = keeps(launch)
                made |= {s: size for s, size in kept.items() if recompute and s not in held}
                gone = sum(held.get(s, made.get(s, 0)) for s in kept if first.setdefault(s, number) == number)
                self.releases[number] = gone
                for storage, size in gathers(launch).items():
                    gathered[storage] = number, gathered.get(storage, (0, number, 0))[1], size
            begin += len(launches)
            results_bytes, first_read = sum(remade.get(at, {}).values()), runs.get(at, begin - 1)
            self.again[first_read] = self.again.get(first_read, 0) + sum(made.values()) + results_bytes
            after[begin] = results_bytes  # gone when the backward of all readers has run: that of the next kernel last
        for number, size in after.items():
            self.releases[number] = self.releases.get(number, 0) + size
        for from_, to, size in gathered.values():
            self.again[from_] = self.again.get(from_, 0) + size
            self.releases[to] += size
        self.moves = self._moves(conversions)
        self.moments = [*self._walk()]

    def _moves(self, conversions: Sequence[tuple[Name, Name]]) -> dict[int, list[tuple[str, Name]]]:
        """By the number of a kernel, the conversions of gradients after its backward: result and source."""
        first: dict[str, int] = {}
        for number, launch in enumerate(self.launches):
            for name in launch.reads:
                first.setdefault(self.root(name), number)
        found: dict[int, list[tuple[str, Name]]] = {}
        for result, source in reversed(conversions):
            if (at := first.get(self.root(result))) is not None:
                found.setdefault(at, []).append((self.root(result), source))
                first[self.root(source)] = min(at, first.get(self.root(source), at))
        return found

    def most(self, *, first: bool) -> int:
        """The bytes by which memory grows at most, compared with the beginning. In the `first` backward of a step the
        gradients of weights stay in memory; in later ones they are added to those."""
        most = level = 0  # the peak so far, and the growth now
        there = {bucket for bucket in self.bucket_of.values() if not first and not bucket.ends}  # allocated ones
        for made, weights, gone, in_place in self.moments:
            grown = made + sum([self._stays(weight, there, first=first) for weight in weights])
            if not in_place or grown != gone:
                most = max(most, level + grown)
            level += grown - gone
        return most

    def _stays(self, weight: Name, there: set[GradientBucket], *, first: bool) -> int:
        """The bytes that a weight's gradient adds to those on the device. `there` are the buckets that are allocated;
        its own is one of them from now on."""
        if (bucket := self.bucket_of.get(weight)) is None:
            return self.stays.get(weight, 0) if first or weight in self.anew else 0
        made = 0 if bucket in there else bucket.size_bytes
        there.add(bucket)
        return made

    def _walk(self) -> Iterator[_Moment]:
        """Yields what happens to memory, from the last kernel to the first."""
        waiting: Sizes = {}  # gradients, by storage, that are made and not used yet
        for number, launch in reversed(list(enumerate(self.launches))):
            fresh, grads = self._made(launch, waiting)
            made, taken = sum(fresh.values()), {self.root(v.name): self.learning.get(v.name, 0) for v in launch.writes}
            runs = sum(size for storage, size in taken.items() if storage not in waiting) + grads + self.between(launch)
            yield _Moment(self.again.get(number, 0) + made + runs, (), runs)
            for storage, size in fresh.items():
                waiting[storage] = waiting.get(storage, 0) + size
            freed = sum(waiting.pop(storage, 0) for storage in taken) + self.releases.get(number, 0)
            landed = [r for r in launch.reads if self.lands.get(r) == number]
            moved = sum(self.weights[weight] for weight in landed)
            stay = *(r for r in launch.reads if r in self.stays), *landed
            yield _Moment(self._wait_for_more(number, waiting) - freed + moved, stay, moved)
            for result, source in self.moves.get(number, ()):
                before = waiting.pop(result, 0)
                if source in self.weights:
                    yield _Moment(0, (source,), before, in_place=True)
                else:
                    yield _Moment(self._converted(source, waiting), (), before, in_place=True)

    def _wait_for_more(self, number: int, waiting: Sizes) -> int:
        """The growth of gradients that wait for other readers of their weights, until they are summed."""
        grown = 0
        for weight in self.launches[number].reads:
            key = f"gradient of {weight}"
            if self.lands.get(weight) == number:
                grown -= waiting.pop(key, 0)
            elif weight in self.lands and key not in waiting:
                grown += self.weights[weight]
                waiting[key] = self.weights[weight]
        return grown

    def _converted(self, source: Name, waiting: Sizes) -> int:
        """The bytes that the gradient of a conversion's source takes in addition to those it has already."""
        storage, size = self.root(source), self.learning.get(source, 0)
        added = max(0, size - waiting.get(storage, 0))
        waiting[storage] = waiting.get(storage, 0) + added
        return added

    def _made(self, launch: Launch, waiting: Sizes) -> tuple[Sizes, int]:
        """The bytes of gradients that a kernel's backward makes in addition to those that wait, by storage, and those
        of weights."""
        fresh: Sizes = {}
        for name in launch.reads:
            if name in self.learning and name not in self.weights:
                storage = self.root(name)
                there = waiting.get(storage, 0) + fresh.get(storage, 0)
                whole = max(self.learning.get(Name(storage), 0), self.learning[name])
                fresh[storage] = fresh.get(storage, 0) + max(0, min(self.learning[name], whole - there))
        return fresh, sum(self.weights[name] for name in launch.reads if name in self.weights)
