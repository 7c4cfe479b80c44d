"""Activations: the memory that one forward of a function keeps until its backward, for autograd and the engine.

Recomputed sections keep what enters them; the rest exists while their backward runs, and the results that they make
again from the first backward that reads them. All of it follows from the tape of the function's backward.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import compress
from math import prod

from ssdsl.analyse.collectives import is_reduced
from ssdsl.analyse.program_index import ProgramIndex
from ssdsl.analyse.tape import Sizes, Tape, TouchKind, brought_back, kept, made_again, peak_bytes
from ssdsl.ir.comm import ReduceScatter
from ssdsl.ir.function import Backward, Function, FunctionInput
from ssdsl.ir.layout import Submesh
from ssdsl.ir.param import FlatParam
from ssdsl.ir.program import At
from ssdsl.ir.value import Coordinate, Name, Time
from ssdsl.record import Record, replace
from ssdsl.simulate.memory.backward import BucketOf, WeightGradients, backward_tape
from ssdsl.simulate.memory.gathered import backward_touches, forward_bytes
from ssdsl.simulate.memory.storages import Storages
from ssdsl.simulate.price.fusion import Fusion

Part = tuple[tuple[Coordinate, int], ...]


class KeptBytes(Record):
    """The bytes that one task keeps on one device.

    `size_bytes` are kept until backward; `for_weights`, of inputs and gradients of results, from there until the
    weights' half of backward. `recomputed_bytes` are the most that backward makes again for one section. `outputs` are
    the bytes of each output; `lent` are those outputs, by number, that are freed once other functions have read them.

    While a backward runs, the gradients that it makes grow and the kept bytes shrink. `first_bytes` is the most that
    both together exceed `size_bytes` in the first backward of a step, which also makes the gradients of weights;
    `later_bytes` in the others. `learned_bytes` are the bytes of gradients of weights. `gathered_bytes` is the most
    that it gathers of weights (ZeRO-3), in forward or in half of a backward; those of a whole backward are in its
    bytes. `host_bytes` lie on the host until backward.
    """

    size_bytes: int
    for_weights: int
    recomputed_bytes: int
    outputs: tuple[int, ...]
    lent: tuple[tuple[int, int], ...]
    first_bytes: int = 0
    later_bytes: int = 0
    learned_bytes: int = 0
    gathered_bytes: int = 0
    host_bytes: int = 0

    @property
    def waiting_bytes(self) -> int:
        """The bytes kept until backward, without outputs that are freed once they are read. It may be negative: a
        function without a backward frees its outputs."""
        return self.size_bytes - sum(size for _, size in self.lent)


class Around(Record):
    """Facts about a function's memory that depend on other functions. `held`: the input is a value that another
    function of these devices, or an earlier task of this one, keeps already; `shared`: that function also runs less
    often. `kept`: the output is kept by a reader until its backward. `buckets`: for each parameter, the number of the
    bucket that its gradient shares with others, whether the bucket ends with the task, and the parts into which it is
    scattered; None for a gradient by itself."""

    held: tuple[bool, ...]
    shared: tuple[bool, ...]
    kept: tuple[bool, ...]
    buckets: tuple[BucketOf | None, ...]


@dataclass
class Activations:
    """The kept bytes of a program's functions, found once for functions of one kind with the same `Around`."""

    facts: ProgramIndex
    fusion: Fusion
    _tasks: dict[tuple[int, At], KeptBytes] = field(default_factory=dict)
    _found: dict[tuple[int, Around, Part], KeptBytes] = field(default_factory=dict)
    _unlike: dict[int, tuple[int, ...]] = field(default_factory=dict)  # positions of indices whose parts differ
    _around: dict[int, Around] = field(default_factory=dict)

    def of(self, function: Function, at: At = ()) -> KeptBytes:
        """The bytes that a task of a function keeps: the mean over its parts if no part is given. Without a backward it
        keeps only its outputs."""
        if (unlike := self._unlike.get(function.number)) is None:
            names = _unlike(self.facts.like(function))
            unlike = self._unlike[function.number] = tuple(n for n, t in enumerate(function.time) if t.name in names)
        key = function.number, tuple([at[n] for n in unlike]) if at else ()
        if (kept := self._tasks.get(key)) is None:
            part = tuple((Time(function.time[n].name), k) for n, k in zip(unlike, key[1], strict=False))
            kept = self._tasks[key] = self._of(function, part)
        return kept

    def _of(self, function: Function, part: Part) -> KeptBytes:
        like, around = self.facts.like(function), self._around_of(function)
        key = like.number, around, part
        if key not in self._found:
            self._found[key] = _Task(self.facts, self.fusion, like, around, dict(part)).kept()
        return self._found[key]

    def storages(self, function: Function) -> dict[str, int]:
        """The bytes of each storage that a task of a function keeps, by the storage's name; empty without a
        backward."""
        if function.backward is Backward.NONE:
            return {}
        return _Task(self.facts, self.fusion, function, self._around_of(function), {}).kept_sizes

    def _around_of(self, function: Function) -> Around:
        if function.number not in self._around:
            held = tuple(self._is_held(given, function) for given in function.inputs)
            inputs = zip(held, function.inputs, strict=True)
            shared = tuple(is_held and runs_less(self.facts, given, function) for is_held, given in inputs)
            slots = self._kept_by_readers(function)
            kept = tuple(o.slot in slots for o in function.outputs)
            self._around[function.number] = Around(held, shared, kept, tuple(self._buckets(function)))
        return self._around[function.number]

    def _buckets(self, function: Function) -> Iterator[BucketOf | None]:
        """The buckets of each parameter. Halves of a backward fill none: those are filled when they are reduced."""
        numbers: dict[int, int] = {}
        flats = self._reduced[function.submesh]
        for parameter in function.parameters:
            flat = flats.get(parameter.var.name.value)
            if flat is None or parameter.var.gradient is None or function.backward is not Backward.WHOLE:
                yield None
            else:
                steps, ways = flat.completion.each or flat.completion.started, dict(flat.submesh.axes)
                scattered = [axis for step in steps if isinstance(step, ReduceScatter) for axis in step.axes]
                parts = prod(ways[axis] for axis in scattered)
                yield numbers.setdefault(flat.number, len(numbers)), bool(flat.completion.each), parts

    @cached_property
    def _reduced(self) -> defaultdict[Submesh, dict[str, FlatParam]]:
        """The flat parameters whose gradients are reduced as a whole, by their submesh and weights."""
        found: defaultdict[Submesh, dict[str, FlatParam]] = defaultdict(dict)
        for flat in (f for f in self.facts.program.flats if not f.sharded.weights and is_reduced(f)):
            found[flat.submesh].update(dict.fromkeys(flat.weights, flat))
        return found

    def _is_held(self, given: FunctionInput, function: Function) -> bool:
        """Whether an input is a value that another function of these devices keeps already. One in flight is not."""
        producer = self.facts.program.functions[given.producer]
        is_kept = producer.backward is not Backward.NONE
        is_copy = bool(given.merges) and producer != function  # parts of earlier tasks are not joined
        is_kept = is_kept and (producer.again is None or function.is_made_again(given, producer))
        return producer.submesh == function.submesh and not is_copy and is_kept and not given.in_flight

    def _kept_by_readers(self, function: Function) -> frozenset[str]:
        """The slots of a function that others on its devices, which run more often, or its own later tasks keep until
        their backward."""
        found = {i.slot for i in function.inputs if i.producer == function.number}
        for reader in (f for f in self.facts.program.functions if f.submesh == function.submesh):
            given = {
                i.var.name: i.slot
                for i in reader.inputs
                if i.producer == function.number and not i.merges and runs_less(self.facts, i, reader)
            }
            launches = (x for section in self.fusion.launches(reader) for x in section) if given else ()
            reading = (launch for launch in launches if not given.keys().isdisjoint(launch.reads))
            kept = {name for launch in reading for name in launch.kept}
            found.update(slot for name, slot in given.items() if name in kept)
        return frozenset(found)


def runs_less(facts: ProgramIndex, given: FunctionInput, reader: Function) -> bool:
    """Whether the producer of an input runs less often than its reader: several tasks then keep the same tensor."""
    return {*facts.program.functions[given.producer].time} < {*reader.time}


def _unlike(function: Function) -> frozenset[str]:
    """The indices in time whose parts differ in memory: parts of unequal sizes, or with padding at a border."""
    sizes = [size for var in function.variables().values() for size in var.shape]
    found = {coordinate for size in sizes for coordinate, _ in size.uneven}
    found |= {w.coordinate for op in function.operators() for w in op.kernel.windows}
    return frozenset(c.name for c in found if isinstance(c, Time))


class _Task:
    """One task of a function, at one part along some indices in time, and the tape of its backward. `kept_sizes` are
    the storages that it keeps until then, with its outputs; `lent` those outputs, by number, that are freed once they
    have been read."""

    def __init__(
        self, facts: ProgramIndex, fusion: Fusion, function: Function, around: Around, part: dict[Coordinate, int]
    ) -> None:
        self.facts, self.function = facts, function
        given = [i.var.name for i in function.inputs]
        self.of_other = set(compress(given, around.held))
        self.storages = Storages(facts, fusion, function, set(compress(given, around.shared)), part)
        self.weights = WeightGradients.of(facts, function, around.buckets)
        self.tape, self.on_host = self._from_host(self._tape())
        self.kept_sizes = kept(self.tape.backward)
        self.lent: dict[int, int] = {}
        for number, output in enumerate(function.outputs):
            if (root := self.storages.root(output.name)) not in self.kept_sizes:
                self.kept_sizes |= self.storages.behind_of(output.name)
                if output.read and not around.kept[number]:
                    self.lent[number] = self.kept_sizes[root]

    def _tape(self) -> Tape:
        if self.function.backward is Backward.NONE:
            return Tape(())
        read = {r for op in self.function.operators() for r in op.reads}
        inputs = [i.var.name for i in self.function.inputs if i.var.name in read]
        entering = [self._kept(section.entering() if section.recompute else ()) for section in self.function.sections]
        is_whole = self.function.backward is Backward.WHOLE
        gathered = backward_touches(self.facts, self.function) if is_whole else []
        return backward_tape(self.storages, entering, self._kept(inputs), self.weights, gathered)

    def _from_host(self, tape: Tape) -> tuple[Tape, Sizes]:
        """The tape, with what sections on the host alone keep brought back from there; and those storages."""
        there = {number for number, section in enumerate(self.function.sections) if section.on_host}
        if not there:
            return tape, {}
        elsewhere = {*self._kept(i.var.name for i in self.function.inputs)}
        elsewhere |= {self.storages.root(output.name) for output in self.function.outputs}
        reads = [touch for touch in (*tape.backward, *tape.for_weights) if touch.kind is TouchKind.READ]
        elsewhere |= {touch.storage for touch in reads if touch.at.section not in there}
        moved = {touch.storage: touch.size_bytes for touch in reads if touch.storage not in elsewhere}
        back, for_weights = (brought_back(touches, moved) for touches in (tape.backward, tape.for_weights))
        return replace(tape, backward=back, for_weights=for_weights), moved

    def _kept(self, names: Iterable[Name]) -> Sizes:
        """The storages of values that no other function keeps."""
        sizes: Sizes = {}
        for name in names:
            sizes |= {} if name in self.of_other else self.storages.kept_of(name)
        return sizes

    def kept(self) -> KeptBytes:
        """The bytes that the task keeps."""
        outputs = tuple(self.storages.size(o.name) for o in self.function.outputs)
        if self.function.backward is Backward.NONE:
            return KeptBytes(0, 0, 0, outputs, tuple(enumerate(outputs)))
        touches, sizes = self.tape.backward, self.kept_sizes
        return KeptBytes(
            sum(sizes.values()),
            sum(kept(self.tape.for_weights).values()),
            max(made_again(touches, sizes).values(), default=0),
            outputs,
            tuple(self.lent.items()),
            peak_bytes(touches, sizes),
            peak_bytes(touches, {**sizes, **self.tape.lasting}),
            self.weights.stay_bytes,
            forward_bytes(self.facts, self.function),
            sum(self.on_host.values()),
        )
