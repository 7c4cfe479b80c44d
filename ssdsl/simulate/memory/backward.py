"""Writes the tape of a backward: from the last kernel to the first, gradients are made and kept tensors are dropped.

A recomputed section runs again before the backward of its last kernel, or of the last kernel that reads a result which
it makes again. A value that is gathered again is there from the backward of its last reader to that of its first.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import accumulate, chain

from ssdsl.analyse.program_index import ProgramIndex
from ssdsl.analyse.tape import Sizes, Tape, Touch, TouchKind
from ssdsl.ir.function import Conversion, Function
from ssdsl.ir.uses import InstrPlace
from ssdsl.ir.value import Name
from ssdsl.record import Record
from ssdsl.simulate.memory.storages import KernelStorages, Storages
from ssdsl.simulate.price.fusion import Launch

BucketOf = tuple[int, bool, int]  # its number, whether it ends with the task, and the parts into which it is scattered


class GradientBucket(Record):
    """The concatenated gradients of some weights, as a program reduces them. The bucket is allocated with the first
    gradient of a step; if it `ends` with the task, with the first one of each backward. A full one is scattered into
    `parts`, of which one comes to the device beside it."""

    storage: str
    size_bytes: int
    ends: bool
    parts: int
    weights: int


class WeightGradients(Record):
    """The bytes of the gradients of a function's weights. `whole` are those before they are sharded, `stays` the part
    of these that stays on the device. The weights of `anew` get a new gradient in each backward, others only in the
    first one of a step: later ones are added to it. A gradient moves into its bucket, if `buckets` has one for its
    weight, when the backward of all kernels that read the weight has run. Gradients of weights that a section has
    `gathered`, by its number, are whole until its backward ends."""

    whole: Mapping[Name, int]
    stays: Mapping[Name, int]
    anew: frozenset[Name]
    buckets: Mapping[Name, GradientBucket]
    gathered: Mapping[int, tuple[Name, ...]]

    @classmethod
    def of(cls, facts: ProgramIndex, function: Function, bucket_of: Iterable[BucketOf | None]) -> "WeightGradients":
        """Those of a function, with the bucket of each of its parameters."""
        learned = [p.var for p in function.parameters if p.var.gradient is not None]
        whole = {v.name: v.elements * facts.state.gradient_bytes(v.dtype) for v in learned}
        moving: defaultdict[BucketOf, list[Name]] = defaultdict(list)
        for parameter, bucket in zip(function.parameters, bucket_of, strict=True):
            if bucket is not None:
                moving[bucket].append(parameter.var.name)
        buckets = {
            name: GradientBucket(f"bucket {number}", sum(whole[n] for n in names), ends, parts, len(names))
            for (number, ends, parts), names in moving.items()
            for name in names
        }
        flats = [[facts.program.flats[n] for n in section.gathers] for section in function.sections]
        of_sections = {
            number: tuple(name for flat in here for w in flat.weights if (name := Name(w)) in whole)
            for number, here in enumerate(flats)
            if here
        }
        gathered = list(chain.from_iterable(flats))
        held = {w: (f.elements_over(f.sharded.weights), f.elements) for f in gathered for w in f.weights}
        parts = ((name, size, held.get(name.value, (1, 1))) for name, size in whole.items() if name not in buckets)
        stays = {name: size * part // elements for name, size, (part, elements) in parts}
        anew = frozenset(Name(weight) for flat in gathered if flat.completion.each for weight in flat.weights)
        return cls(whole, stays, anew, buckets, of_sections)

    @property
    def stay_bytes(self) -> int:
        """The bytes on the device after a backward."""
        return sum(self.stays.values()) + sum(b.size_bytes for b in dict.fromkeys(self.buckets.values()))


def backward_tape(
    storages: Storages,
    entering: Sequence[Sizes],
    inputs: Sizes,
    weights: WeightGradients,
    gathered: Sequence[Touch] = (),
) -> Tape:
    """The tape of a function's backward. `entering` are, for each section, the storages that it reads from outside if
    it is recomputed; `inputs` those of the function's inputs; `gathered` the touches of weights that it gathers."""
    return _Writer(storages, entering, weights).tape(inputs, deque(gathered))


class _Writer:
    """`before` and `after` have touches by the number of the kernel at whose backward they are. `lands` has, by weight
    in a bucket, the first kernel that reads it: its backward is the last to add to the gradient. `scatters` has, by the
    number of a section's first kernel, the weights that the section has gathered. `waiting` are the bytes of gradients
    that are made and not used yet."""

    def __init__(self, storages: Storages, entering: Sequence[Sizes], weights: WeightGradients) -> None:
        self.storages, self.kernels, self.weights = storages, storages.kernels(), weights
        self.sections = storages.function.sections
        self.learning = {n: storages.size(n) for n, var in storages.variables.items() if var.gradient is not None}
        self.gradient = cache(lambda name: f"gradient of {storages.root(name)}")
        self.at, self.touches = InstrPlace(0, 0), list[Touch]()
        self.waiting: Sizes = {}
        self.lasting: Sizes = {}
        self.filled = Counter[GradientBucket]()  # the weights whose gradients have moved into it
        self.before: defaultdict[int, list[Touch]] = defaultdict(list)
        self.after: defaultdict[int, list[Touch]] = defaultdict(list)
        reads = ((r, number) for number, k in reversed(list(enumerate(self.kernels))) for r in k.launch.reads)
        self.lands = {r: number for r, number in reads if r in weights.buckets}
        begins = {k.at.section: number for number, k in reversed(list(enumerate(self.kernels)))}
        self.scatters = {begins[n]: names for n, names in weights.gathered.items() if n in begins}
        self.gathered = frozenset(chain.from_iterable(self.scatters.values()))
        self._there(entering)
        self.moves = self._moves()

    def tape(self, inputs: Sizes, gathered: deque[Touch]) -> Tape:
        """Goes from the last kernel to the first."""
        for number, kernel in reversed(list(enumerate(self.kernels))):
            self.at = kernel.at
            while gathered and (gathered[0].at, gathered[0].kind is TouchKind.GATHER) > (kernel.at, False):
                self.touches.append(gathered.popleft())
            self.touches += self.before[number]
            if not self.sections[kernel.at.section].recompute:
                self.touches += _sized(self.at, TouchKind.READ, kernel.saved)
            learned = [r for r in kernel.launch.reads if r in self.weights.whole]
            self._values(kernel, learned)
            self.touches += self.after[number]
            if learned:
                self._weights(number, learned)
            while gathered and gathered[0].at >= kernel.at:
                self.touches.append(gathered.popleft())
            self._scatter(number)
            for conversion in self.moves[number]:
                self._convert(conversion)
        self.touches += [*self.before[-1], *gathered]  # of sections in front without kernels
        self.touches += _sized(self.at, TouchKind.READ, inputs)
        return Tape(tuple(self.touches), tuple(self._for_weights()), self.lasting)

    def _make(self, sizes: Sizes) -> None:
        self.touches += _sized(self.at, TouchKind.MAKE, sizes)

    def _drop(self, storages: Iterable[str]) -> None:
        self.touches += _drops(self.at, storages)

    def _pass(self, size_bytes: int) -> None:
        """Adds gradients that go on at once: into an operator, to their weight or to its bucket."""
        if size_bytes:
            self._make({"passing gradients": size_bytes})
            self._drop(["passing gradients"])

    # -- what is there already, or again ---------------------------------------------------------------------------

    def _there(self, entering: Sequence[Sizes]) -> None:
        """Adds the touches of what forward has kept, and of what is made or gathered again: each is dropped after the
        backward of the first kernel that needs it."""
        ends = [0] * len(self.sections)
        insides: list[Sizes] = [{} for _ in ends]
        results: list[Sizes] = [{} for _ in ends]
        runs: dict[int, int] = {}  # by section, the kernel before whose backward it runs again
        gathers: dict[str, tuple[int, Touch]] = {}  # by storage, the last kernel that reads it
        dropped: set[str] = set()
        for number, kernel in enumerate(self.kernels):
            ends[kernel.at.section] += 1
            insides[kernel.at.section] |= kernel.saved
            for section, remade in kernel.remade.items():
                runs[section] = number
                results[section] |= remade
            gathers |= {t.storage: (number, t) for t in _sized(kernel.at, TouchKind.GATHER, kernel.gathered)}
            needed = kernel.saved | kernel.gathered
            self.after[number] += _drops(kernel.at, [s for s in needed if s not in dropped])
            dropped.update(needed)
        for number, touch in gathers.values():
            self.before[number].append(touch)
        for section, end in enumerate(accumulate(ends)):
            at, before = InstrPlace(section, 0), self.before[runs.get(section, end - 1)]
            if self.sections[section].recompute:
                before += _sized(at, TouchKind.READ, entering[section])
                before += _sized(at, TouchKind.AGAIN, insides[section] | results[section])
            # the backward of all readers has run with that of the next kernel
            self.after[end] += _drops(at, results[section])

    # -- gradients -------------------------------------------------------------------------------------------------

    def _values(self, kernel: KernelStorages, learned: Sequence[Name]) -> None:
        """The gradients of the values that a kernel reads; those of its results go."""
        made = self._made(kernel.launch)
        taken = {self.gradient(v.name): self.learning.get(v.name, 0) for v in kernel.launch.writes}
        arrived = sum([size for storage, size in taken.items() if storage not in self.waiting])
        of_weights = sum([self.weights.whole[r] for r in learned])
        self._make(made)
        self._pass(arrived + of_weights + kernel.inside_bytes)
        self.waiting |= made
        self._drop(taken)
        for storage in taken:
            self.waiting.pop(storage, 0)

    def _made(self, launch: Launch) -> Sizes:
        """The gradients of values to which a kernel's backward adds, with their bytes from then on."""
        made: Sizes = {}
        for name in launch.reads:
            if name in self.learning and name not in self.weights.whole:
                storage, size = self.gradient(name), self.learning[name]
                there = made.get(storage, self.waiting.get(storage, 0))
                whole = max(self.learning.get(Name(self.storages.root(name)), 0), size)
                made[storage] = there + max(0, min(size, whole - there))
        return made

    def _weights(self, number: int, learned: Sequence[Name]) -> None:
        """The gradients of weights that a kernel reads. Those that go to a bucket wait for the other readers of their
        weight, until they are summed."""
        waits = [r for r in learned if r in self.lands and self.lands[r] != number]
        landed = [r for r in learned if r in self.lands and self.lands[r] == number]
        self._drop([f"sum of gradients of {r}" for r in landed])
        self._make({f"sum of gradients of {r}": self.weights.whole[r] for r in waits})
        whole = [r for r in learned if r in self.gathered]
        self._make({f"whole gradient of {r}": self.weights.whole[r] for r in whole})
        lone = (r for r in learned if r in self.weights.stays and r not in self.gathered)
        stays = [self._stays(r, str(number)) for r in (*lone, *landed)]
        self._make({storage: size for gradient in stays for storage, size in gradient.items()})
        self._pass(sum([self.weights.whole[r] for r in landed]))
        for bucket in (self.weights.buckets[r] for r in landed):
            self.filled[bucket] += 1
            if bucket.parts > 1 and self.filled[bucket] == bucket.weights:
                self._make({f"part of {bucket.storage}": bucket.size_bytes // bucket.parts})

    def _scatter(self, number: int) -> None:
        """The gradients of weights that a section has gathered are reduced to this device's parts, at the end of its
        backward."""
        for weight in self.scatters.get(number, ()):
            self._make(self._stays(weight, str(number)))
        self._drop([f"whole gradient of {weight}" for weight in self.scatters.get(number, ())])

    def _stays(self, weight: Name, reader: str) -> Sizes:
        """The storage of a weight's gradient that stays on the device: its bucket, or what this reader leaves. Several
        readers of a weight without a bucket count one by one."""
        if (bucket := self.weights.buckets.get(weight)) is not None:
            gradient, lasts = {bucket.storage: bucket.size_bytes}, not bucket.ends
        else:
            gradient = {f"gradient of {weight} by {reader}": self.weights.stays.get(weight, 0)}
            lasts = weight not in self.weights.anew
        self.lasting |= gradient if lasts else {}
        return gradient

    def _moves(self) -> defaultdict[int, list[Conversion]]:
        """By the number of a kernel, the conversions of gradients after its backward: that of all readers of a
        conversion's result has run."""
        first: dict[str, int] = {}
        root = self.storages.root
        for number, kernel in enumerate(self.kernels):
            for name in kernel.launch.reads:
                first.setdefault(root(name), number)
        moves: defaultdict[int, list[Conversion]] = defaultdict(list)
        for instr in reversed(self.storages.function.body()):
            if isinstance(instr, Conversion) and (at := first.get(root(instr.result.name))) is not None:
                moves[at].append(instr)
                first[root(instr.source)] = min(at, first.get(root(instr.source), at))
        return moves

    def _convert(self, conversion: Conversion) -> None:
        """The gradient of a conversion's result becomes that of its source; in place, if it has as many bytes."""
        result, source = self.gradient(conversion.result.name), conversion.source
        freed = self.waiting.pop(result, 0)
        if source in self.weights.whole:
            made = self._stays(source, str(conversion.result.name))
            growth = sum(made.values())
        else:
            storage = self.gradient(source)
            there = self.waiting.get(storage, 0)
            self.waiting[storage] = max(there, self.learning.get(source, 0))
            made, growth = {storage: self.waiting[storage]}, self.waiting[storage] - there
        if growth == freed:
            self._drop([result])
        self._make(made)
        self._drop([result])

    def _for_weights(self) -> Iterator[Touch]:
        """Yields the touches of the weights' half: it reads what kernels with weights keep, and their gradients."""
        for kernel in reversed(self.kernels):
            if kernel.for_weights:
                gradients = {f"gradient of {name}": self.storages.size(name) for name in kernel.for_weights}
                yield from _sized(kernel.at, TouchKind.READ, kernel.saved | gradients)


def _sized(at: InstrPlace, kind: TouchKind, sizes: Sizes) -> list[Touch]:
    return [Touch(at, storage, kind, size) for storage, size in sizes.items()]


def _drops(at: InstrPlace, storages: Iterable[str]) -> list[Touch]:
    return [Touch(at, storage, TouchKind.DROP) for storage in storages]
