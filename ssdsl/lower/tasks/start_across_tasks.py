"""Starts a conversion at the end of the task that computes a value, and awaits it where the task that reads it begins,
if the devices run another task between the two.

With a batch in halves, `attn[half = 0] -> attn[half = 1] -> mlp[half = 0]`, the sum that ends the first task travels
while the second one computes:

    block0:   linear                              block0:   linear
              -> linear                                     linear@1 = all_reduce linear      # starts
    block1:   linear@1 = all_reduce linear   is             -> linear@1 in flight
              add(x, linear@1)                    block1:   add(x, linear@1)                  # awaited before

So the conversion moves from the function that reads its source to the one that computes it, as its last instruction,
unless it is there already. Backward mirrors this: the gradient starts to travel when the backward of the reader has
ended, and is awaited before that of the producer begins. Both run on the same devices, once for each coordinate, so all
devices start their communication in one order, that of the tasks. Values do not depend on it, to the last bit: a value
with a gradient has no other reader.

Views between the conversion and the border, which compute nothing, move to the other side. Rows of experts travel by
their numbers, which are sent before: the conversions of these move with them.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from ssdsl.ir.comm import Transfer, travels
from ssdsl.ir.function import (
    Conversion,
    Function,
    FunctionInput,
    FunctionOutput,
    Instr,
    OpPart,
    Section,
    reads_of,
    results_of,
)
from ssdsl.ir.program import At, Compute
from ssdsl.ir.value import Name, Var
from ssdsl.lower.functions.number_kinds import number_kinds
from ssdsl.lower.functions.views import is_view
from ssdsl.lower.stages import Formed, Scheduled, Task
from ssdsl.plan.plan import Phase
from ssdsl.record import replace

Stage = TypeVar("Stage", bound=Formed)
Apart = Callable[[Function, Function], bool]  # of the function that computes a value, and the one that reads it


def start_across_tasks(lowering: Scheduled) -> Scheduled:
    """Sets `in_flight` of outputs and inputs, and moves their conversions to the functions that compute the values.

    Of a sum in two halves of a batch, whose tasks take turns:

        +     %linear_3@1 = all_reduce<tp>(16) %linear_3 : f32[4, 4] at (batch: half)
        -   return %linear_3 in slot "linear_3"
        +   return %linear_3@1 in slot "linear_3@1" in flight
        -     %linear_3@1 = all_reduce<tp>(16) %linear_3 : f32[4, 4] at (batch: half)
    """
    return with_starts(lowering, _Between(lowering).any_task)


def with_starts(lowering: Stage, apart: Apart) -> Stage:
    """The stage whose conversions are in flight between the tasks of two functions, where these are `apart`: devices
    run other tasks in between."""
    functions = _Starts(lowering, apart).functions()
    if functions == lowering.functions:
        return lowering
    return replace(lowering, functions=number_kinds(replace(lowering, functions=functions)).functions)


def travelling(lowering: Formed) -> frozenset[tuple[int, int, bool]]:
    """The numbers of the functions between whose tasks a conversion may be in flight: the one that computes a value,
    the one that reads it, and whether its gradient travels."""
    functions = _Starts(lowering, lambda producer, reader: True).functions()
    found = set[tuple[int, int, bool]]()
    for reader in functions:
        for given in (i for i in reader.inputs if i.in_flight):
            producer = functions[given.producer]
            conversion = producer.departure([o.slot for o in producer.outputs].index(given.slot))
            ways = (back for back in (False, True) if any(map(travels, conversion.steps(gradient=back))))
            found.update((producer.number, reader.number, gradient) for gradient in ways)
    return frozenset(found)


class _Between:
    """The order of the tasks of each role: by function and phase, the place of the task at each coordinate."""

    def __init__(self, lowering: Scheduled) -> None:
        self.roles = [_places(tasks) for tasks in lowering.tasks]

    def any_task(self, producer: Function, reader: Function) -> bool:
        """Whether a role runs a task between those of two functions at one coordinate, forward or backward."""
        if self._any(producer, Phase.FORWARD, reader, Phase.FORWARD):
            return True
        if reader.returns is None or producer.returns is None:
            return False
        return self._any(reader, reader.returns, producer, producer.returns)

    def _any(self, one: Function, phase: Phase, other: Function, later: Phase) -> bool:
        return any(
            places[other.number, later][at] > place + 1
            for places in self.roles
            for at, place in places.get((one.number, phase), {}).items()
        )


def _places(tasks: Iterable[Task]) -> dict[tuple[int, Phase], dict[At, int]]:
    found = defaultdict[tuple[int, Phase], dict[At, int]](dict)
    for place, task in enumerate(task for task in tasks if isinstance(task, Compute)):
        found[task.function, task.phase][task.at] = place
    return found


def _may_travel(conversion: Conversion) -> bool:
    """Whether a conversion may be in flight between tasks: it communicates, at most once in each direction, and
    backward does not repeat it."""
    steps = conversion.forward, conversion.backward
    counts = [sum(map(travels, each)) for each in steps]
    return not conversion.again and max(counts) == 1 and not any(s.in_time for each in steps for s in each)


class _Starts:
    """The functions while conversions move. `readers` are the functions that read an output, by its producer and its
    slot; `elsewhere` are the outputs that messages and reports read as well."""

    def __init__(self, lowering: Formed, apart: Apart) -> None:
        self.all, self.apart, self.graph = [*lowering.functions], apart, lowering.graph
        self.elsewhere = {(m.producer, m.source_slot) for m in lowering.messages if isinstance(m, Transfer)}
        self.elsewhere |= {(r.function, r.slot) for r in lowering.results}
        self.readers = defaultdict[tuple[int, str], list[int]](list)
        for function in self.all:
            for given in function.inputs:
                self.readers[given.producer, given.slot].append(function.number)

    def functions(self) -> tuple[Function, ...]:
        """The functions after all moves."""
        for number in range(len(self.all)):
            for instr in self.all[number].body():
                if isinstance(instr, Conversion) and _may_travel(instr):
                    self._move(number, instr)
        for number in range(len(self.all)):
            for output in self.all[number].outputs:
                self._start(number, output)
        return tuple(self.all)

    def _input(self, reader: Function, name: Name) -> FunctionInput | None:
        """The input of this name, if a function on the same devices has computed it in a task at the same
        coordinates."""
        given = next((i for i in reader.inputs if i.var.name == name), None)
        if given is None or given.message is not None or given.merges or name.value in self.graph.alone:
            return None
        producer = self.all[given.producer]
        is_near = (producer.submesh, producer.time) == (reader.submesh, reader.time)
        is_near = is_near and producer.again is None and reader.again is None  # one start each way
        return given if is_near and producer.number != reader.number else None

    def _is_read_once(self, given: FunctionInput, reader: Function) -> bool:
        """Whether one instruction alone reads a value that another function has computed."""
        slot, name = (given.producer, given.slot), given.var.name
        is_alone = self.readers[slot] == [reader.number] and slot not in self.elsewhere
        return is_alone and len(reader.uses.readers[name]) == 1 and name not in reader.uses.outputs

    # -- to the function that computes the value -----------------------------------------------------------------------

    def _move(self, number: int, conversion: Conversion) -> None:
        """Moves a conversion of an input to the function that computes it, if it may be in flight between the two."""
        reader, result = self.all[number], conversion.result.name
        if result not in reader.uses.makers or result in reader.uses.outputs:
            return
        views = self._views_before(reader, conversion.source)
        given = self._input(reader, views[0].reads[0] if views else conversion.source)
        if given is None:
            return
        if given.gradient and not self._is_read_once(given, reader):
            return
        producer = self.all[given.producer]
        output = next(o for o in producer.outputs if o.slot == given.slot)
        if output.wgrad_only or self._is_loss(producer, output) or not self.apart(producer, reader):
            return
        brought = _Brought(producer, reader)
        also = [brought.name_of(name) for name in conversion.also]
        if None in also:
            return
        name, learns = brought.fresh(result), conversion.result.gradient is not None
        var = replace(conversion.result, name=name)
        first = [replace(op, reads=(output.name,)) for op in views[:1]]
        source = views[-1].results[0].name if views else output.name
        moved = replace(conversion, source=source, result=var, also=tuple(also), in_place=(False, False))
        self.all[given.producer] = replace(
            producer,
            inputs=(*producer.inputs, *brought.inputs),
            sections=_ending_with(producer.sections, (*brought.conversions, *first, *views[1:], moved)),
            outputs=(*producer.outputs, FunctionOutput(name, str(name), learns)),
        )
        arrives = FunctionInput(conversion.result, given.producer, str(name), given.time, (), learns)
        sections = _without(reader.sections, {result, *_results(views)})
        self.all[number] = replace(reader, inputs=(*reader.inputs, arrives), sections=sections)
        for entering in brought.inputs:
            self.readers[entering.producer, entering.slot].append(given.producer)
        self.readers[given.producer, arrives.slot].append(number)
        self._drop_unread(number)

    def _views_before(self, function: Function, name: Name) -> list[OpPart]:
        """The views that lead to a value, each read by the next one alone, in order."""
        found, uses = list[OpPart](), function.uses
        while (maker := uses.makers.get(name)) is not None:
            op = function.at(maker)
            is_alone = isinstance(op, OpPart) and len(op.reads) == len(op.results) == 1 and is_view(op, self.graph)
            if not isinstance(op, OpPart) or not is_alone or len(uses.readers.get(name, ())) > 1:
                break
            if found and name in uses.outputs:
                break
            found.insert(0, op)
            name = op.reads[0]
        return found

    def _is_loss(self, function: Function, output: FunctionOutput) -> bool:
        return function.loss is not None and function.outputs[function.loss] == output

    def _drop_unread(self, number: int) -> None:
        """Drops the outputs, conversions and inputs of a function that nothing reads any more, and with its inputs the
        outputs of others."""
        function = self.all[number]
        outputs = tuple(
            o
            for o in function.outputs
            if self._is_loss(function, o) or self.readers[number, o.slot] or (number, o.slot) in self.elsewhere
        )
        loss = None if function.loss is None else outputs.index(function.outputs[function.loss])
        body = function.body()
        read = {o.name for o in outputs}
        unread = set[Name]()
        for instr in reversed(body):
            if isinstance(instr, Conversion) and instr.result.name not in read:
                unread.add(instr.result.name)
            else:
                read.update(reads_of(instr))
        inputs = tuple(i for i in function.inputs if i.var.name in read)
        dropped = [i for i in function.inputs if i.var.name not in read]
        sections = _without(function.sections, unread)
        self.all[number] = replace(function, inputs=inputs, sections=sections, outputs=outputs, loss=loss)
        for given in dropped:
            self.readers[given.producer, given.slot].remove(number)
            self._drop_unread(given.producer)

    # -- in flight -----------------------------------------------------------------------------------------------------

    def _start(self, number: int, output: FunctionOutput) -> None:
        """Puts an output in flight, if it is the result of a conversion, and a function that runs later alone reads
        it."""
        producer, slot = self.all[number], (number, output.slot)
        uses, readers, views = producer.uses, self.readers[slot], self._views_before(producer, output.name)
        name = views[0].reads[0] if views else output.name
        conversion = producer.at(uses.makers[name]) if name in uses.makers else None
        if not isinstance(conversion, Conversion) or not _may_travel(conversion):
            return
        is_read_here = [p for p in uses.readers.get(name, ()) if not views or producer.at(p) != views[0]]
        is_read_here += uses.readers.get(output.name, ())
        is_left = bool(views) and name in uses.outputs
        if len(readers) != 1 or is_read_here or is_left or slot in self.elsewhere or output.wgrad_only:
            return
        reader = self.all[readers[0]]
        entering = next(i for i in reader.inputs if (i.producer, i.slot) == slot)
        if self._input(reader, entering.var.name) is None or self._is_loss(producer, output):
            return
        if not self.apart(producer, reader) or (views and entering.var.name != output.name):
            return
        conversion = replace(conversion, in_place=(conversion.in_place[0], False))
        leaves = replace(output, name=name, slot=str(name), in_flight=True)
        self.all[number] = replace(
            producer,
            sections=_ending_with(_without(producer.sections, {name, *_results(views)}), (conversion,)),
            outputs=tuple(leaves if o is output else o for o in producer.outputs),
        )
        var = conversion.result if views else entering.var
        arrives = replace(entering, var=var, slot=str(name), in_flight=True)
        self.all[reader.number] = replace(
            reader,
            inputs=tuple(arrives if i is entering else i for i in reader.inputs),
            sections=_beginning_with(reader.sections, views),
        )


@dataclass(slots=True)
class _Brought:
    """Values without a gradient that a conversion needs as well, such as numbers of rows, and that the producer of its
    source gets from the reader: the `inputs` and `conversions` that it gets with them."""

    producer: Function
    reader: Function
    inputs: list[FunctionInput] = field(default_factory=list)
    conversions: list[Conversion] = field(default_factory=list)

    def name_of(self, name: Name) -> Name | None:
        """The name in the producer of a value of the reader; None if it cannot have it."""
        var = self.reader.variables()[name]
        if (there := next((v.name for v in self._variables() if _is_same(v, var)), None)) is not None:
            return there
        given = next((i for i in self.reader.inputs if i.var.name == name), None)
        if given is not None:
            return self._entering(given)
        maker = self.reader.uses.makers.get(name)
        instr = None if maker is None else self.reader.at(maker)
        if not isinstance(instr, Conversion) or instr.also or instr.again or var.gradient is not None:
            return None
        if any(s.in_time for s in instr.forward) or (source := self.name_of(instr.source)) is None:
            return None
        result = replace(var, name=self.fresh(name))
        self.conversions.append(replace(instr, source=source, result=result, in_place=(False, False)))
        return result.name

    def _entering(self, given: FunctionInput) -> Name | None:
        """The name in the producer of an input of the reader, which it computes or reads, too."""
        if given.producer == self.producer.number and not given.merges:
            return next(o.name for o in self.producer.outputs if o.slot == given.slot)
        is_before = any(i.producer == given.producer and not i.merges for i in self.producer.inputs)
        if given.gradient or given.merges or given.message is not None or not is_before:
            return None
        if given.time != self.producer.time:
            return None
        var = replace(given.var, name=self.fresh(given.var.name))
        self.inputs.append(replace(given, var=var))
        return var.name

    def _variables(self) -> list[Var]:
        brought = (*(i.var for i in self.inputs), *(c.result for c in self.conversions))
        return [*self.producer.variables().values(), *brought]

    def fresh(self, name: Name) -> Name:
        """A new name in the producer for a version of a value."""
        versions = [v.name.version for v in self._variables() if v.name.value == name.value]
        return Name(name.value, 1 + max(versions, default=0))


def _is_same(one: Var, other: Var) -> bool:
    return (one.name.value, one.type, one.shape) == (other.name.value, other.type, other.shape)


# -- sections ----------------------------------------------------------------------------------------------------------


def _results(instrs: Iterable[Instr]) -> Iterator[Name]:
    return (var.name for instr in instrs for var in results_of(instr))


def _ending_with(sections: Sequence[Section], instrs: Sequence[Instr]) -> tuple[Section, ...]:
    """Sections with further instructions at the end, outside of layers and of what is recomputed."""
    if not sections or sections[-1].is_apart or sections[-1].gathers:
        return (*sections, Section("", False, tuple(instrs)))
    *front, last = sections
    return (*front, replace(last, body=(*last.body, *instrs)))


def _beginning_with(sections: tuple[Section, ...], instrs: Sequence[Instr]) -> tuple[Section, ...]:
    return (Section("", False, tuple(instrs)), *sections) if instrs else sections


def _without(sections: Sequence[Section], results: set[Name]) -> tuple[Section, ...]:
    """Sections without the instructions that have these results; none is empty."""
    left = (_with_fewer(section, results) for section in sections)
    return tuple(section for section in left if section.body)


def _with_fewer(section: Section, results: set[Name]) -> Section:
    gone = [k for k, instr in enumerate(section.body) if not results.isdisjoint(_results((instr,)))]
    if not gone:
        return section

    def pairs(before: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        return ((start - bisect_left(gone, start), stop - bisect_left(gone, stop)) for start, stop in before)

    return replace(
        section,
        body=tuple(instr for k, instr in enumerate(section.body) if k not in gone),
        compiled=tuple((start, stop) for start, stop in pairs(section.compiled) if stop > start + 1),
        in_flight=tuple(pairs(pair for pair in section.in_flight if pair[1] not in gone)),
    )
