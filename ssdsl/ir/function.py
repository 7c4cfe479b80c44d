"""Functions: operators that run together as one autograd segment, instruction by instruction.

A function runs on every device of its submesh, once for each coordinate of its indices in time. Its body is a sequence
of sections; the instructions of a section belong to one layer and are recomputed in backward together, or not at all.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from functools import cache, cached_property

from ssdsl.ir.comm import AllGather, AllReduce, Exchange, Narrow, Step
from ssdsl.ir.layout import Submesh
from ssdsl.ir.uses import InstrPlace, Uses
from ssdsl.ir.value import Axis, Coordinate, Name, TimeIndex, Var, names_of
from ssdsl.model.graph import Order
from ssdsl.model.memory.saved_tensors import Saved
from ssdsl.plan.plan import Phase, Plan
from ssdsl.plan.regions import Digit, Regions, Run
from ssdsl.record import Record, replace

# -- operators ---------------------------------------------------------------------------------------------------------


class Split(Record):
    """An operator's dimension number `dim` has a `digit`, whose value is the part's coordinate.

    `also` is another dimension that has the same digit. One of the two may number equal parts of the other: then it has
    a digit of these numbers, and regions are those of the other.
    """

    coordinate: Coordinate
    dim: int
    digit: Digit
    also: int | None = None

    @property
    def dims(self) -> tuple[int, ...]:
        """The dimensions that have the digit."""
        return (self.dim,) if self.also is None else (self.dim, self.also)

    def in_dim(self, sizes: Sequence[int], dim: int) -> Digit:
        """The digit in one of its dimensions; `sizes` are those of all dimensions.

        >>> from ssdsl.ir.value import Axis
        >>> halves = Split(Axis("cp"), 0, Digit(2), also=1)
        >>> halves.in_dim((2, 16), 0).stride, halves.in_dim((2, 16), 1).stride
        (1, 8)
        """
        if self.digit.at is None:
            return replace(self.digit, stride=self.digit.stride * sizes[dim] // sizes[self.dim])
        numbers_parts = sizes[dim] < max(sizes[d] for d in self.dims)
        return Digit(self.digit.parts) if numbers_parts else self.digit


class Carried(Record):
    """The operator works on partial sums along a coordinate: it is linear in `operands` (values), and each part of them
    is an addend. The parts are those of a `digit` that an earlier operator summed."""

    coordinate: Coordinate
    digit: Digit
    operands: frozenset[str]


OpSplit = Split | Carried


def names_along(splits: Iterable[OpSplit]) -> tuple[str, ...]:
    """The names of all axes and indices in time of some splits, in order."""
    return tuple(name for split in splits for name in names_of(split.coordinate))


class Side(Enum):
    """The side of an operand, for a backward in halves: it decides which half computes its gradient."""

    ACTIVATION = "activation"
    WEIGHT = "weight"
    FIXED = "fixed"  # it has no gradient


class Offset(Record):
    """The first position of a digit's part along a coordinate: k * stride, or the start of region k."""

    coordinate: Coordinate
    digit: Digit


class WindowPart(Record):
    """An operator's windows along a coordinate: part k computes the positions `results[k]` of a dimension of the
    result, and reads the run `needs[k]` of axis number `axis` of operand number `operand`, the first that is windowed
    on that dimension. The axis has `size` positions."""

    coordinate: Coordinate
    axis: int
    results: Regions
    needs: tuple[Run, ...]
    size: int
    operand: int = 0


class PlaceOnAxis(Record):
    """The sum of the `offsets` is a part's first position on an axis of `size` positions; without any it has all."""

    offsets: tuple[Offset, ...]
    size: int


class Region(Record):
    """The positions that each part has on a tensor's axis number `axis`, which is made of dimensions of the sizes `of`.

    `runs` are positions on the whole axis, also if it has several dimensions. The parts are in the order of the devices
    along the kernel's axes, as its process group numbers them; those that a kernel is `merging` come first.
    """

    axis: int
    of: tuple[int, ...]
    runs: Regions


class PartRuns(Record):
    """The positions that the part at each coordinate has."""

    coordinate: Axis
    runs: Regions


class Kernel(Record):
    """The kernel that computes a part of an operator: its own call (`function` empty), or a function of the runtime.

    `axes` are those over which it communicates by itself. The other fields are arguments, set if the function takes
    them: the sum of the `offsets` is the part's first position on the split axis (`{start}`), the sum of `before` is
    the number of parts in front of it (`{part}`); `places` has for each of several axes the part's place (`{places}`);
    `windows` are the axes along which it reads windows (`{parts}`); `region` has the positions of all parts on the
    split axis (`{regions}`), `size` is the length of that axis; `count` is the number of elements that all parts have
    along the combined dimensions.

    Keys that go around a ring do so along all `axes` but those that it is `merging`: along these, each ring has other
    keys for the same queries, and the results are merged (`{merging}`). `queries` are the positions of the queries, if
    the axes of the ring do not say them (`{queries}`).
    """

    function: str = ""
    axes: tuple[str, ...] = ()
    offsets: tuple[Offset, ...] = ()
    before: tuple[Offset, ...] = ()
    windows: tuple[WindowPart, ...] = ()
    places: tuple[PlaceOnAxis, ...] = ()
    region: Region | None = None
    size: int | None = None
    count: int | None = None
    merging: tuple[str, ...] = ()
    queries: PartRuns | None = None

    @property
    def around(self) -> tuple[str, ...]:
        """The axes of its process group: those along which keys go around, or all."""
        return tuple(name for name in self.axes if name not in self.merging)


CALL = Kernel()
NOTHING_SAVED = Saved()


class OpPart(Record):
    """A part of an operator of the graph. `reads` has one name per operand, `results` one value per output.

    `first` are the coordinates along which only the first part adds an operand (a bias). `sides`, for a backward in
    halves, is the half of each operand's gradient. `saved` is what autograd saves for backward: operands, results and
    further tensors, with local sizes. `orders`, for an operator that asks for its operands' strides, is the order of
    axes in which each operand is laid out in memory before the call.
    """

    operator: str
    splits: tuple[OpSplit, ...]
    reads: tuple[Name, ...]
    results: tuple[Var, ...]
    kernel: Kernel = CALL
    first: tuple[Coordinate, ...] = ()
    sides: tuple[Side, ...] | None = None
    saved: Saved = NOTHING_SAVED
    orders: tuple[Order, ...] = ()

    def parts_along(self, axes: Sequence[str]) -> int:
        """The number of parts along some axes together."""
        return math.prod(s.digit.parts for s in self.splits if not {*axes}.isdisjoint(names_of(s.coordinate)))

    @property
    def learns(self) -> bool:
        """Whether a gradient of its results comes back to it."""
        return any(v.gradient is not None for v in self.results)


class Conversion(Record):
    """Brings a value to another layout by the `forward` steps; its gradient takes the `backward` steps.

    A step in time is alone in its conversion, and has no steps backward, as autograd differentiates it. `Narrow` gives
    the running part of a value. `KeepFirst` gives the first part the value, and the others zeros: so a term that is the
    same for all parts joins a sum of which each part computes an addend. `Exchange` joins the running part to those
    before it.

    `in_place`: whether the first step may overwrite the value, and the gradient. `again`: backward takes the `forward`
    steps again where it reads the result, and only the source is kept until then. `also` are further values that the
    steps read: for rows that are sorted by experts and go to other devices, the numbers of rows of each run, in the
    layout of the source and in that of the result; for an `Exchange` in time, an input with the earlier parts.
    """

    source: Name
    result: Var
    forward: tuple[Step, ...]
    backward: tuple[Step, ...] = ()
    in_place: tuple[bool, bool] = (False, False)
    also: tuple[Name, ...] = ()
    again: bool = False

    def steps(self, *, gradient: bool) -> tuple[Step, ...]:
        """The steps that the value takes, or its gradient."""
        return self.backward if gradient else self.forward


class Write(Record):
    """Writes a value to a buffer, in the buffer's layout; only to the running part that `slices`, steps in time, give.

    Until the end of the step all readers see the old value. Recomputation does not write again.
    """

    buffer: str
    source: Name
    slices: tuple[Narrow, ...] = ()


Instr = OpPart | Conversion | Write


def reads_of(instr: Instr) -> tuple[Name, ...]:
    """The local values that an instruction reads."""
    match instr:
        case OpPart():
            return instr.reads
        case Conversion():
            return (instr.source, *instr.also)
        case Write():
            return (instr.source,)


def results_of(instr: Instr) -> tuple[Var, ...]:
    """The local values that an instruction makes."""
    match instr:
        case OpPart():
            return instr.results
        case Conversion():
            return (instr.result,)
        case Write():
            return ()


def saved_names(op: OpPart, saved: Saved) -> list[Name]:
    """The local values among the tensors that autograd saves of an operator."""
    return [*(op.reads[n] for n in saved.inputs), *(op.results[n].name for n in saved.outputs)]


Called = Instr | tuple[OpPart, ...]  # an instruction, or the operators of a compiled run together


class Section(Record):
    """Instructions of one layer (a module path, empty for the root). If it is recomputed, it keeps only what enters it.

    `again` are results of a recomputed section that are not kept for their readers' backward either: that runs the
    section again.
    `gathers` are the numbers of the flat parameters (ZeRO-3) that are gathered before it and dropped after it.
    `awaits` are those whose weights other devices have updated in the step before, and which have arrived when the
    function comes to this section: what a device has of them between steps is first read here.
    `compiled` are the runs of its instructions, [start, stop), that torch.compile makes kernels of: operators that need
    nothing but tensors.
    `in_flight` are the conversions that communicate while other instructions run, each as (start, wait): the conversion
    is the instruction number `wait`, where its result is there, and it starts in front of the instruction number
    `start`. They are in the order of their starts. Backward mirrors this: the gradient starts to travel at the wait,
    and is awaited at the start.
    What backward keeps of a section `on_host` lies in the memory of the host until backward reads it.
    Sections of one `kind` are equal but for names: a fact about one holds for another if the n-th of its `names()` is
    replaced by the n-th of the other's.
    """

    layer: str
    recompute: bool
    body: tuple[Instr, ...]
    gathers: tuple[int, ...] = ()
    awaits: tuple[int, ...] = ()
    again: tuple[Name, ...] = ()
    kind: int | None = None
    compiled: tuple[tuple[int, int], ...] = ()
    in_flight: tuple[tuple[int, int], ...] = ()
    on_host: bool = False

    @property
    def is_apart(self) -> bool:
        """Whether it is a function of its own in the program's text, which frees at its end what it has gathered."""
        return bool(self.layer) or self.recompute or self.on_host

    def names(self) -> tuple[Name, ...]:
        """The values that its instructions read and make, each once, in the order in which they appear."""
        return tuple(dict.fromkeys(n for i in self.body for n in (*reads_of(i), *(v.name for v in results_of(i)))))

    def starts_at(self, instr: int) -> list[Conversion]:
        """The conversions that start in front of an instruction, in order."""
        return [c for start, wait in self.in_flight if start == instr and isinstance(c := self.body[wait], Conversion)]

    @property
    def awaited(self) -> frozenset[int]:
        """The numbers of the conversions that start before their place."""
        return frozenset(wait for _, wait in self.in_flight)

    def run_at(self, instr: int) -> tuple[int, int] | None:
        """The compiled run that an instruction is in; None if it is in none."""
        return next((run for run in self.compiled if run[0] <= instr < run[1]), None)

    def called(self) -> Iterator[Called]:
        """What it calls one after another: instructions, and compiled runs as wholes."""
        starts = dict(self.compiled)
        number = 0
        while number < len(self.body):
            stop = starts.get(number)
            if stop is None:
                yield self.body[number]
            else:
                yield tuple(i for i in self.body[number:stop] if isinstance(i, OpPart))
            number = stop or number + 1

    def entering(self) -> tuple[Name, ...]:
        """The values that its instructions read and that none of them makes, each once, in order."""
        made = {v.name for i in self.body for v in results_of(i)}
        return tuple(dict.fromkeys(r for i in self.body for r in reads_of(i) if r not in made))


# -- inputs and outputs ------------------------------------------------------------------------------------------------


Merge = AllGather | AllReduce | Exchange  # in time: all parts joined, their sum, or the region that a part needs


class FunctionInput(Record):
    """A value of another function. `time` are its producer's indices in time: along those of `merges` its parts are
    merged into one; along the others the reader reads the part at its own coordinate. `slot` is where this device keeps
    the parts. `gradient`: whether a gradient flows back. `message` is the number of the transfer that brings the value
    from other devices. A value `in_flight` has been sent by its producer, and is awaited before the task begins; then
    its gradient starts to travel when the backward of this task has ended.

    A function may be its own producer: each part then reads what the parts before it have left. A part that later parts
    read gets the sum of their gradients.
    """

    var: Var
    producer: int
    slot: str
    time: tuple[TimeIndex, ...]
    merges: tuple[Merge, ...]
    gradient: bool
    message: int | None = None
    in_flight: bool = False


class Prepared(Record):
    """A value that the prologue made for the whole step, under its name there."""

    var: Var
    source: Name


class Parameter(Record):
    """A weight or buffer that a function reads, in the layout in which it lives."""

    var: Var


class FunctionOutput(Record):
    """A value that leaves the function; its gradient comes back to the same slot. `read` is false for a loss that only
    the report reads. `wgrad_only`: a backward in halves uses its gradient only in the second half, as it leads to
    weights only. A value `in_flight` is the result of a conversion that has started when the task ends, and that its
    one reader awaits, while other tasks run; its gradient is awaited before the backward of this task begins. A value
    that is left `again` is read by functions that run again together with this one: it is in its slot again then."""

    name: Name
    slot: str
    gradient: bool
    read: bool = True
    wgrad_only: bool = False
    in_flight: bool = False
    again: bool = False


class Backward(Enum):
    """The way in which a function's backward runs."""

    NONE = "none"  # nothing has a gradient
    WHOLE = "whole"
    HALVES = "halves"  # the gradients of inputs and those of weights are two tasks
    DGRAD = "dgrad"  # in halves, but the function has no weights: there is only the first half


PHASES: dict[Backward, tuple[Phase, ...]] = {
    Backward.NONE: (Phase.FORWARD,),
    Backward.WHOLE: (Phase.FORWARD, Phase.BACKWARD),
    Backward.HALVES: (Phase.FORWARD, Phase.DGRAD, Phase.WGRAD),  # DGRAD returns gradients to other functions
    Backward.DGRAD: (Phase.FORWARD, Phase.DGRAD),
}


class GathersAhead(Record):
    """The flat parameters (ZeRO-3) that the sections of a function gather in forward, and again in backward, in order;
    none if no gather starts ahead. Gathers start when the function awaits those of the section that is so many places
    before theirs as their flat parameter's `ahead` says."""

    forward: tuple[tuple[int, ...], ...] = ()
    backward: tuple[tuple[int, ...], ...] = ()


AT_ONCE = GathersAhead()


def starts_of_gathers(count: int, groups: Sequence[Sequence[int]], ahead_of: Callable[[int], int]) -> list[list[int]]:
    """For each of so many gathers in order, by numbers, those that start when it is awaited: itself first, if it has
    not started before. `groups` are the flat parameters of each section, none if each gather starts at its reader;
    `ahead_of` gives a flat parameter's `ahead`.

    >>> starts_of_gathers(4, [[7], [5, 6], [4]], lambda flat: 1)
    [[0, 1, 2], [3], [], []]
    """
    if not groups:
        return [[number] for number in range(count)]
    coming = [(section, section - ahead_of(flat)) for section, those in enumerate(groups) for flat in those]
    found, begun = list[list[int]](), set[int]()
    for number, (reached, _) in enumerate(coming):
        others = (n for n, (_, starts) in enumerate(coming[number:], number) if starts <= reached)
        found.append([n for n in dict.fromkeys((number, *others)) if n not in begun])
        begun.update(found[-1])
    return found


def sections_that_gather(sections: Sequence[Section], ahead: GathersAhead, ahead_of: Callable[[int], int]) -> list[int]:
    """For each gather of a forward, in the order of `Section.gathers`, the number of the section in front of which it
    starts: its own, or one before it."""
    of_gathers = [number for number, section in enumerate(sections) for _ in section.gathers]
    found = [*of_gathers]
    for awaited, begun in enumerate(starts_of_gathers(len(of_gathers), ahead.forward, ahead_of)):
        for gather in begun:
            found[gather] = of_gathers[awaited]
    return found


class Function(Record, dict=True):
    """Operators that run together: one autograd segment.

    `stage` is the same for functions with the same devices, indices in time and ordered sets. `loss` is the number of
    the output that is the loss, if one is. Functions of one `kind` are equal but for names and devices, like sections.
    The forward of a function with `again` keeps nothing for backward: a task of its own runs it again before. Functions
    with the same number run again together: what they read of each other is not kept in between either.
    """

    number: int
    name: str
    submesh: Submesh
    time: tuple[TimeIndex, ...]
    inputs: tuple[FunctionInput, ...]
    prepared: tuple[Prepared, ...]
    parameters: tuple[Parameter, ...]
    sections: tuple[Section, ...]
    outputs: tuple[FunctionOutput, ...]
    backward: Backward
    stage: int
    loss: int | None = None
    kind: int | None = None
    ahead: GathersAhead = AT_ONCE
    again: int | None = None

    def body(self) -> list[Instr]:
        """All instructions in order."""
        return [i for section in self.sections for i in section.body]

    def called(self) -> list[Called]:
        """What it calls one after another: instructions, and compiled runs as wholes."""
        return [c for section in self.sections for c in section.called()]

    def operators(self) -> list[OpPart]:
        """The operators in order."""
        return [i for section in self.sections for i in section.body if isinstance(i, OpPart)]

    def at(self, place: InstrPlace) -> Instr:
        """The instruction at a place."""
        return self.sections[place.section].body[place.instr]

    @cached_property
    def uses(self) -> Uses:
        """Where its local values are made and read."""
        makers, readers = dict[Name, InstrPlace](), dict[Name, list[InstrPlace]]()
        for number, section in enumerate(self.sections):
            for n, instr in enumerate(section.body):
                place = InstrPlace(number, n)
                makers.update((v.name, place) for v in results_of(instr))
                for name in dict.fromkeys(reads_of(instr)):
                    readers.setdefault(name, []).append(place)
        return Uses(makers, readers, frozenset(o.name for o in self.outputs))

    @cached_property
    def departing(self) -> dict[InstrPlace, int]:
        """The places of the conversions that are in flight when a task ends, each with the number of its output."""
        return {self.uses.makers[o.name]: number for number, o in enumerate(self.outputs) if o.in_flight}

    def departure(self, output: int) -> Conversion:
        """The conversion of an output that is in flight when a task ends."""
        instr = self.at(self.uses.makers[self.outputs[output].name])
        assert isinstance(instr, Conversion)
        return instr

    def leaving(self) -> list[frozenset[Name]]:
        """For each section, the values that it computes for other sections or for the function's results."""
        found: list[list[Name]] = [[] for _ in self.sections]
        for name, maker in self.uses.makers.items():
            if name in self.uses.outputs or self.uses.last(name).section > maker.section:
                found[maker.section].append(name)
        return list(map(frozenset, found))

    def kept(self) -> Iterator[tuple[InstrPlace, Name]]:
        """Yields the values that autograd keeps for backward, each with the place of the instruction that keeps it:
        what operators save; and what enters a recomputed section, at its last instruction, whose backward runs it
        again."""
        for number, section in enumerate(self.sections if self.backward is not Backward.NONE else ()):
            if section.recompute:
                yield from ((InstrPlace(number, len(section.body) - 1), name) for name in section.entering())
                continue
            for n, instr in enumerate(section.body):
                if isinstance(instr, OpPart):
                    yield from ((InstrPlace(number, n), name) for name in saved_names(instr, instr.saved))

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases of its tasks in order: forward, perhaps again, then those of its backward."""
        found = PHASES[self.backward]
        return found if self.again is None else (found[0], Phase.AGAIN, *found[1:])

    @property
    def returns(self) -> Phase | None:
        """The phase that computes the gradients of its inputs; None without a backward."""
        return next((phase for phase in PHASES[self.backward] if phase.of_inputs), None)

    @property
    def keeps(self) -> Phase:
        """The phase that keeps values for backward: the last of those that compute its operators."""
        return Phase.FORWARD if self.again is None else Phase.AGAIN

    def is_made_again(self, given: FunctionInput, producer: "Function") -> bool:
        """Whether an input is made again before this function runs again; else it is kept until then."""
        return self.again is not None and self.again == producer.again and given.message is None

    @cached_property
    def trained(self) -> frozenset[str]:
        """The weights whose gradients its backward adds to."""
        return frozenset(p.var.name.value for p in self.parameters if p.var.gradient is not None)

    def first_read(self, weights: Iterable[str]) -> InstrPlace:
        """The place of the first instruction that reads one of some weights. Its backward is the last that adds to
        their gradients."""
        return min(self.uses.readers.get(Name(w), [InstrPlace(0, 0)])[0] for w in weights)

    def variables(self) -> dict[Name, Var]:
        """Every local value by its name."""
        given = [*(i.var for i in self.inputs), *(p.var for p in self.prepared), *(p.var for p in self.parameters)]
        return {v.name: v for v in (*given, *(v for i in self.body() for v in results_of(i)))}


def ahead_of(plan: Plan, functions: Sequence[Function]) -> Callable[[int], int]:
    """By the number of a function that reads messages, how many more of each may have arrived (`Plan.ahead`); found
    once for each function."""
    return cache(lambda number: plan.ahead(op.operator for op in functions[number].operators()))


class Prologue(Record):
    """The operators that run on a submesh outside its functions: `constants` once, the `body`, which depends on inputs
    only, once per step.

    `given` are the inputs and constants that the body reads, `results` the names that functions read.
    """

    submesh: Submesh
    constants: tuple[str, ...]
    given: tuple[Var, ...]
    body: tuple[Instr, ...]
    results: tuple[Name, ...]
