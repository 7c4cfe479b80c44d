"""Activations: the memory that one forward of a function keeps until its backward, for autograd and the engine.

Storages are counted, not tensors: a view keeps the whole storage that it looks into, and a storage that several
operators keep counts once. Recomputed sections keep what enters them; the rest exists while their backward runs, and
the results that they make again from the first backward that reads them.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import compress

from ssdsl.analyse.collectives import is_reduced
from ssdsl.analyse.program_index import ProgramIndex, flat_bytes, size_bytes
from ssdsl.ir.function import (
    Backward,
    Conversion,
    Function,
    FunctionInput,
    OpPart,
    Side,
)
from ssdsl.ir.layout import Submesh
from ssdsl.ir.param import FlatParam
from ssdsl.ir.program import At
from ssdsl.ir.value import Coordinate, Name, Time
from ssdsl.lower.functions.views import made_again, memory_of, views_of
from ssdsl.record import Record, replace
from ssdsl.simulate.memory.padded import padded_bytes
from ssdsl.simulate.memory.within_backward import GradientBucket, WithinBackward
from ssdsl.simulate.price.fusion import Fusion, Launch

Sizes = dict[str, int]  # bytes by storage
Part = tuple[tuple[Coordinate, int], ...]


class KeptBytes(Record):
    """The bytes that one task keeps on one device.

    `size_bytes` are kept until backward; `for_weights`, of inputs and gradients of results, from there until the
    weights' half of backward. `recomputed_bytes` are the most that backward makes again for one section. `outputs` are
    the bytes of each output; `lent` are those outputs, by number, that are freed once other functions have read them.

    While a backward runs, the gradients that it makes grow and the kept bytes shrink. `first_bytes` is the most that
    both together exceed `size_bytes` in the first backward of a step, which also makes the gradients of weights;
    `later_bytes` in the others. `learned_bytes` are the bytes of gradients of weights. `gathered_bytes` is the most
    that one section gathers of weights (ZeRO-3).
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

    @property
    def waiting_bytes(self) -> int:
        """The bytes kept until backward, without outputs that are freed once they are read. It may be negative: a
        function without a backward frees its outputs."""
        return self.size_bytes - sum(size for _, size in self.lent)


class Around(Record):
    """Facts about a function's memory that depend on other functions. `held`: the input is a value that another
    function of these devices, or an earlier task of this one, keeps already; `shared`: that function also runs less
    often. `kept`: the output is kept by a reader until its backward. `buckets`: for each parameter, the number of the
    bucket that its gradient shares with others, and whether the bucket ends with the task; None for a gradient by
    itself."""

    held: tuple[bool, ...]
    shared: tuple[bool, ...]
    kept: tuple[bool, ...]
    buckets: tuple[tuple[int, bool] | None, ...]


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
            self._found[key] = _Function(self.facts, self.fusion, like, around, dict(part)).kept()
        return self._found[key]

    def storages(self, function: Function) -> dict[str, int]:
        """The bytes of each storage that a task of a function keeps, by the storage's name; empty without a
        backward."""
        if function.backward is Backward.NONE:
            return {}
        return _Function(self.facts, self.fusion, function, self._around_of(function), {}).held()

    def _around_of(self, function: Function) -> Around:
        if function.number not in self._around:
            held = tuple(self._is_held(given, function) for given in function.inputs)
            inputs = zip(held, function.inputs, strict=True)
            shared = tuple(is_held and runs_less(self.facts, given, function) for is_held, given in inputs)
            slots = self._kept_by_readers(function)
            kept = tuple(o.slot in slots for o in function.outputs)
            self._around[function.number] = Around(held, shared, kept, tuple(self._buckets(function)))
        return self._around[function.number]

    def _buckets(self, function: Function) -> Iterator[tuple[int, bool] | None]:
        """The buckets of each parameter. Halves of a backward fill none: those are filled when they are reduced."""
        numbers: dict[int, int] = {}
        flats = self._reduced[function.submesh]
        for parameter in function.parameters:
            flat = flats.get(parameter.var.name.value)
            if flat is None or parameter.var.gradient is None or function.backward is not Backward.WHOLE:
                yield None
            else:
                yield numbers.setdefault(flat.number, len(numbers)), bool(flat.completion.each)

    @cached_property
    def _reduced(self) -> defaultdict[Submesh, dict[str, FlatParam]]:
        """The flat parameters whose gradients are reduced as a whole, by their submesh and weights."""
        found: defaultdict[Submesh, dict[str, FlatParam]] = defaultdict(dict)
        for flat in (f for f in self.facts.program.flats if not f.sharded.weights and is_reduced(f)):
            found[flat.submesh].update(dict.fromkeys(flat.weights, flat))
        return found

    def _is_held(self, given: FunctionInput, function: Function) -> bool:
        """Whether an input is a value that another function of these devices keeps already."""
        producer = self.facts.program.functions[given.producer]
        is_kept = producer.backward is not Backward.NONE
        is_copy = bool(given.merges) and producer != function  # parts of earlier tasks are not joined
        return producer.submesh == function.submesh and not is_copy and is_kept

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
    found = {v.coordinate for size in sizes for v in size.uneven}
    found |= {w.coordinate for op in function.operators() for w in op.kernel.windows}
    return frozenset(c.name for c in found if isinstance(c, Time))


class _Function:
    """One function at one part along some indices in time. `base` maps each view to its base value; `again` maps values
    that backward gathers again to their sources, `remade` those that a recomputed section makes again to its number."""

    def __init__(
        self, facts: ProgramIndex, fusion: Fusion, function: Function, around: Around, part: dict[Coordinate, int]
    ) -> None:
        self.facts, self.fusion, self.function, self.around, self.part = facts, fusion, function, around, part
        self.saved: dict[int, Sizes] = {}  # by the identity of a kernel, which `fusion` holds
        self.size, self._root = cache(self._size), cache(self._storage)
        self.variables = {
            name: replace(var, shape=tuple(size.at(part) for size in var.shape)) if part else var
            for name, var in facts.variables(function).items()
        }
        self.base = views_of(function, facts.program.graph)
        self.remade = made_again(function, facts.program.graph)
        self.memory = memory_of(function, facts.program.graph) if self.remade else {}
        moved = (i for i in function.body() if isinstance(i, Conversion))
        self.again = {str(i.result.name): i.source for i in moved if i.again}
        given = [i.var.name for i in function.inputs]
        self.of_other = set(compress(given, around.held))
        self.shared = set(compress(given, around.shared))
        self.prepared = {p.var.name.value for p in function.prepared}

    def _size(self, name: Name) -> int:
        """The bytes of a local value."""
        return size_bytes(self.variables[name])

    def kept(self) -> KeptBytes:
        """The bytes that a task of the function keeps."""
        outputs = tuple(self.size(o.name) for o in self.function.outputs)
        if self.function.backward is Backward.NONE:
            return KeptBytes(0, 0, 0, outputs, tuple(enumerate(outputs)))
        held, later, recomputed = self._saved()
        lent = tuple(self._left(held))
        most = max((sum(n for s, n in again.items() if s not in held) for again in recomputed), default=0)
        within = self._within_backward(held)
        return KeptBytes(
            sum(held.values()),
            sum(later.values()),
            most,
            outputs,
            lent,
            within.most(first=True),
            within.most(first=False),
            within.stay_bytes,
            self._gathered(),
        )

    def held(self) -> Sizes:
        """The bytes kept until backward, with the outputs, by storage."""
        held, _, _ = self._saved()
        for _ in self._left(held):
            pass
        return held

    def _saved(self) -> tuple[Sizes, Sizes, list[Sizes]]:
        """The storages that operators save: those kept until backward; those kept for the weights' half; and, section
        by section, those that a recomputed section makes again."""
        held, later, recomputed = self._entering(), Sizes(), []
        for section, launches in zip(self.function.sections, self.fusion.launches(self.function), strict=True):
            again: Sizes = {}
            for name in section.again:
                again[str(self.memory.get(name, name))] = self.size(name)
            for launch in launches:
                saved = self._saved_by(launch)
                (again if section.recompute else held).update(saved)
                for op in filter(self._has_halves, launch.ops):
                    later |= saved | {f"gradient of {v.name}": self.size(v.name) for v in op.results}
            recomputed.append(again)
        return held, later, recomputed

    def _left(self, held: Sizes) -> Iterator[tuple[int, int]]:
        """Adds the outputs to `held`; yields the number and bytes of each that is freed once it has been read."""
        for number, output in enumerate(self.function.outputs):
            if (root := self._root(output.name)) not in held:
                self._add(held, output.name)
                if output.read and not self.around.kept[number]:
                    yield number, held[root]

    def _gathered(self) -> int:
        """The bytes of weights that ZeRO-3 gathers for a section; the most of all sections."""
        flats = self.facts.program.flats
        return max((sum(flat_bytes(flats[n]) for n in s.gathers) for s in self.function.sections), default=0)

    def _within_backward(self, held: Sizes) -> WithinBackward:
        sections = zip(self.fusion.launches(self.function), self.function.sections, strict=True)
        state, flats = self.facts.state, self.facts.program.flats
        learned = [p.var for p in self.function.parameters if p.var.gradient is not None]
        weights = {v.name: v.elements * state.gradient_bytes(v.dtype) for v in learned}
        buckets = self._buckets(weights)
        moving = {weight for bucket in buckets for weight in bucket.weights}
        gathered = [flats[n] for section in self.function.sections for n in section.gathers]
        parts = {w: f.elements // f.elements_over(f.sharded.weights) for f in gathered for w in f.weights}
        return WithinBackward(
            [(launches, section.recompute) for launches, section in sections],
            self._saved_by,
            self._gathered_again,
            self._made_again,
            self._between,
            held,
            {name: self.size(name) for name, var in self.variables.items() if var.gradient is not None},
            weights,
            {name: size // parts.get(name.value, 1) for name, size in weights.items() if name not in moving},
            {Name(weight) for flat in gathered if flat.completion.each for weight in flat.weights},
            self._root,
            [(i.result.name, i.source) for i in self.function.body() if isinstance(i, Conversion)],
            buckets,
        )

    def _between(self, launch: Launch) -> int:
        """The bytes of gradients inside an operator, if it runs as PyTorch has it."""
        chained = (op for op in launch.ops if self.facts.operators[op.operator].row.chained)
        runs = (op for op in chained if op.learns and not op.kernel.function and not self.facts.fuses)
        return sum(self.size(op.reads[0]) for op in runs)

    def _buckets(self, weights: Mapping[Name, int]) -> list[GradientBucket]:
        """The buckets into which the gradients of this function's weights move."""
        found: dict[tuple[int, bool], list[Name]] = {}
        for parameter, bucket in zip(self.function.parameters, self.around.buckets, strict=True):
            if bucket is not None:
                found.setdefault(bucket, []).append(parameter.var.name)
        return [
            GradientBucket(tuple(names), sum(weights[n] for n in names), ends) for (_, ends), names in found.items()
        ]

    def _entering(self) -> Sizes:
        """The storages of inputs that operators read, and of values that recomputed sections read from outside."""
        found: Sizes = {}
        read = {r for op in self.function.operators() for r in op.reads}
        entering = {i.var.name: None for i in self.function.inputs if i.var.name in read}
        for section in (s for s in self.function.sections if s.recompute):
            entering |= dict.fromkeys(section.entering())
        for name in (n for n in entering if n not in self.of_other):
            self._hold(found, name)
        return found

    def _saved_by(self, launch: Launch) -> Sizes:
        """The storages that autograd keeps for the backward of a kernel."""
        if id(launch) not in self.saved:
            self.saved[id(launch)] = self._find_saved(launch)
        return self.saved[id(launch)]

    def _gathered_again(self, launch: Launch) -> Sizes:
        """The values that are gathered again for the backward of a kernel."""
        if not self.again:
            return {}
        roots = map(self._behind, launch.kept)
        return {str(r): self.size(r) for r in roots if str(r) in self.again}

    def _made_again(self, launch: Launch) -> dict[int, Sizes]:
        """The results of recomputed sections that the backward of a kernel reads, by the section's number."""
        found: dict[int, Sizes] = {}
        for name in launch.kept if self.remade else ():
            source = self.again.get(str(self._behind(name)), name)
            if (section := self.remade.get(source)) is not None:
                root = self.memory.get(source, source)
                found.setdefault(section, {})[str(root)] = self.size(root)
        return found

    def _find_saved(self, launch: Launch) -> Sizes:
        op, found = launch.ops[0], Sizes()
        for name in launch.kept:
            if name in self.shared:
                continue
            if name == op.reads[0] and (padded := padded_bytes(self.facts, op, self.variables[name], self.part)):
                found[f"{op.operator} padded"] = padded
            else:
                self._hold(found, name)
        return found | {f"{launch.ops[k].operator} {what}": size for k, what, size in launch.extras}

    def _hold(self, found: Sizes, name: Name) -> None:
        """Adds the storage of a value, unless it is a weight or was prepared for the whole step."""
        if name.value in self.facts.stored or name.value in self.prepared:
            return
        self._add(found, name)

    def _add(self, found: Sizes, name: Name) -> None:
        root = self._behind(name)
        if root in self.remade:
            return
        if str(root) in self.again:
            self._add(found, self.again[str(root)])
        else:
            found[str(root)] = self.size(root)

    def _storage(self, name: Name) -> str:
        """The storage behind a local value."""
        return str(self._behind(name))

    def _behind(self, name: Name) -> Name:
        """The value that a view looks into, if the function makes it; else the name itself."""
        base = self.base.get(name, name)
        return base if base in self.function.uses.makers else name

    def _has_halves(self, op: OpPart) -> bool:
        """Whether the gradients of an operator's weights come in the second half of its backward."""
        in_halves = self.function.backward is Backward.HALVES
        return in_halves and op.sides is not None and Side.WEIGHT in op.sides
