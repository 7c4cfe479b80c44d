"""Assembles functions from their operators. Each version of a value is put before the first operator that needs it.

A value goes to other devices once, also if several functions there read it: the first one hands it on. For example
stages 0 and 2 are on device a, stages 1 and 3 on device b. Stage 3 reads a result of stage 0 that stage 1 has received.
So that is a result of stage 1, too, which adds the gradient of stage 3 to its own, and sends the sum back once.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from ssdsl.ir.comm import Narrow, Transfer
from ssdsl.ir.function import (
    Backward,
    Conversion,
    Function,
    FunctionInput,
    FunctionOutput,
    Instr,
    OpPart,
    Parameter,
    Prepared,
    Section,
    Write,
    reads_of,
)
from ssdsl.ir.program import Loss, Result
from ssdsl.ir.value import Name, Var
from ssdsl.lower.asks import Ask, Entering, Received, SentVersions
from ssdsl.lower.conversions.convert import in_order
from ssdsl.lower.conversions.even import even_cut
from ssdsl.lower.stages import Assembled, Provided, Segment, grown
from ssdsl.model.graph import Operator, Origin
from ssdsl.record import replace


@dataclass(slots=True)
class _Draft:
    """A function while it grows; `has` are the versions that it has so far."""

    number: int
    segment: Segment
    has: dict[Name, Var] = field(default_factory=dict)
    inputs: list[FunctionInput] = field(default_factory=list)
    prepared: list[Prepared] = field(default_factory=list)
    parameters: list[Parameter] = field(default_factory=list)
    body: list[Instr] = field(default_factory=list)
    outputs: dict[Name, FunctionOutput] = field(default_factory=dict)


def assemble(lowering: Provided) -> Assembled:
    """Adds the functions, each of one section, the transfers, the loss and the results."""
    return _Assembling(lowering).assembled()


class _Assembling:
    def __init__(self, lowering: Provided) -> None:
        self.lowering, self.graph = lowering, lowering.graph
        self.converted = lowering.converted
        self.drafts = [_Draft(n, s) for n, s in enumerate(lowering.segments)]
        self.updates = {value: buffer for buffer, value in self.graph.updates.items()}
        self.transfers: dict[tuple[str, int], Transfer] = {}  # by value and consumer
        self.readers: dict[tuple[int, Name], list[tuple[int, Name]]] = {}  # elsewhere, by what is left
        self.arrived: dict[str, list[tuple[_Draft, Name, Received]]] = {}  # by value, those that a message brings
        self.before = _Before(lowering)

    def assembled(self) -> Assembled:
        for number, operator in in_order(self.lowering.segments):
            self._operator(self.drafts[number], operator)
        losses = tuple(map(self._loss, self.graph.losses))
        results = tuple(self._result(name, ask) for name, ask in self.lowering.reported.items())
        live = [_live(d.body, self.lowering.learning) for d in self.drafts]
        # a function that hands a value on has received it before others read it there: these come first here
        for (number, left), readers in reversed(self.readers.items()):
            if any(name in live[reader] for reader, name in readers):
                live[number].add(left)
        finished = [_finished(d, live[d.number], self.lowering.learning, self.graph.losses) for d in self.drafts]
        functions = tuple(_with_repeated(finished))
        returning = {i.message for f in functions for i in f.inputs if i.gradient}
        transfers = (t if t.number in returning else replace(t, backward=None) for t in self.transfers.values())
        made = {"functions": functions, "messages": tuple(transfers), "losses": losses, "results": results}
        return grown(self.lowering, Assembled, **made)

    # -- operators ---------------------------------------------------------------------------------------------------

    def _operator(self, draft: _Draft, operator: Operator) -> None:
        """Adds an operator: before it the versions that it is the first to need, after it the writes of its results
        to buffers."""
        typed, name = self.lowering.typed[operator.name], operator.name
        asks, count = self.lowering.asks[name], len(typed.reads)
        reads = tuple([self._reached(draft, ask) for ask in asks[:count]])
        results = []
        for operand, left in zip(operator.outputs, typed.results, strict=True):
            gradient = left.gradient if operand.value in self.lowering.learning else None
            var = Var(Name(operand.value), left.type, gradient, left.sizes, self.graph.values[operand.value].dtype)
            results.append(var)
            draft.has[var.name] = var
        cut, made, like = self.lowering.splits[name], tuple(results), (typed.kernel, typed.first)
        draft.body.append(OpPart(name, cut, reads, made, *like, saved=typed.saved, orders=operator.orders))
        for ask in asks[count:]:
            self._write(draft, ask)

    def _write(self, draft: _Draft, ask: Ask) -> None:
        """Adds the write of an operator's result to a buffer; along indices in time it writes the running part. Its
        maker leaves no sum over parts in time (`compute_updates` of the model, `propagate_partial`)."""
        assert ask.need is not None
        buffer, type_ = self.updates[ask.value], ask.need.type
        assert not type_.owed, f"a part in time computes only an addend of buffer `{buffer}`"
        source = self._reached(draft, ask)
        shape, held, slices = ask.need.shape, type_.layout.shards(), list[Narrow]()
        for index, digit in type_.time:
            place = even_cut(self.lowering.plan, shape, digit, held)
            slices.append(Narrow((index,), shape.local(held).numel, place, in_time=True))
            held = (*held, digit)
        draft.body.append(Write(buffer, source, tuple(slices)))

    def _loss(self, loss: str) -> Loss:
        """The loss is a result of its function, even if nothing reads it."""
        left = Name(loss)
        draft = self.drafts[self.lowering.makers[loss]]
        draft.outputs.setdefault(
            left, FunctionOutput(left, str(left), draft.has[left].gradient is not None, read=False)
        )
        return Loss(draft.number, left, draft.has[left].type.layout.partial_axes(draft.segment.submesh.axes))

    def _result(self, name: str, ask: Ask) -> Result:
        """The output that a report reads, as its function leaves it."""
        draft, left = self.drafts[ask.function], self._reached(self.drafts[ask.function], ask)
        output = self._leave(draft, left)
        draft.outputs[left] = replace(output, read=True)
        return Result(name, draft.number, left, output.slot)

    # -- versions ----------------------------------------------------------------------------------------------------

    def _reached(self, draft: _Draft, ask: Ask) -> Name:
        """The version that meets an ask; the function has it after this call."""
        name = self.converted.names[ask]
        if name not in draft.has:
            self._reach(draft, name)
        return name

    def _reach(self, draft: _Draft, name: Name) -> None:
        """Gives a function a version, and in front of it the versions from which it is made."""
        if name in draft.has:
            return
        answer, functions = self.converted.answers[name.value, draft.number]
        made = answer.made[functions.index(draft.number), name.version]
        like = made.result if isinstance(made, Conversion) else made.var
        draft.has[name] = var = Var(name, like.type, like.gradient, like.shape, like.dtype)
        match made:
            case Entering():
                self._enter(draft, var)
            case Received():
                self._receive(draft, var, made, self.drafts[functions[made.producer]])
            case _:
                draft.body.append(self._conversion(draft, var, made))

    def _enter(self, draft: _Draft, var: Var) -> None:
        if self.graph.values[var.name.value].origin in (Origin.WEIGHT, Origin.BUFFER):
            draft.parameters.append(Parameter(var))
        else:
            source = self.lowering.provided[var.name.value, draft.segment.submesh, var.type.layout]
            draft.prepared.append(Prepared(var, source))

    def _receive(self, draft: _Draft, var: Var, received: Received, source: _Draft) -> None:
        value = var.name.value
        if received.sent is not None:
            if (host := self._host(draft, var, received)) is not None:
                self._hand_on(draft, var, *host)
                return
            self.arrived.setdefault(value, []).append((draft, var.name, received))
        left = Name(value, received.left.version)
        self._reach(source, left)
        self.readers.setdefault((source.number, left), []).append((draft.number, var.name))
        slot, message = self._leave(source, left).slot, None
        if received.sent is not None:
            transfer = self._sent(draft, source, received.sent, value, slot)
            slot, message = transfer.target_slot, transfer.number
        time, gradient = source.segment.time, var.gradient is not None
        draft.inputs.append(FunctionInput(var, source.number, slot, time, received.merges, gradient, message))

    def _host(self, draft: _Draft, var: Var, received: Received) -> tuple[_Draft, Name] | None:
        """An earlier function on the same devices that has received the same version of a value, with the name there.
        It must come before this one in any order of tasks, and its backward after this one's."""
        segment = draft.segment
        for host, name, arrived in self.arrived.get(var.name.value, ()):
            there = host.has[name]
            is_alike = (arrived.left, arrived.merges, arrived.sent) == (received.left, received.merges, received.sent)
            is_alike &= (there.type, there.gradient, there.shape) == (var.type, var.gradient, var.shape)
            is_near = host.segment.submesh == segment.submesh and host.segment.time == segment.time
            if is_alike and is_near and host.number in self.before.of(draft.number, back=var.gradient is not None):
                return host, name
        return None

    def _hand_on(self, draft: _Draft, var: Var, host: _Draft, name: Name) -> None:
        """Gives a function a value that another one on its devices has received."""
        self.readers.setdefault((host.number, name), []).append((draft.number, var.name))
        gradient = var.gradient is not None
        output = FunctionOutput(name, f"{name} from block{host.number}", gradient)
        slot = host.outputs.setdefault(name, output).slot
        draft.inputs.append(FunctionInput(var, host.number, slot, host.segment.time, (), gradient, None))

    def _leave(self, draft: _Draft, name: Name) -> FunctionOutput:
        """The output of a function under which a version leaves it."""
        return draft.outputs.setdefault(name, FunctionOutput(name, str(name), draft.has[name].gradient is not None))

    def _sent(self, draft: _Draft, source: _Draft, sent: SentVersions, value: str, slot: str) -> Transfer:
        """The one transfer of a value to a function."""
        a, b = source.segment, draft.segment
        ends = source.number, draft.number, a.submesh, b.submesh, slot, f"{value} for block{draft.number}"
        moves = sent.forward, sent.backward, self.graph.values[value].dtype, a.time, sent.uneven
        transfer = Transfer(len(self.transfers), value, *ends, *moves)
        return self.transfers.setdefault((value, draft.number), transfer)

    def _conversion(self, draft: _Draft, result: Var, made: Conversion) -> Conversion:
        """A conversion with the names of its value; the values that it reads are put before it."""
        name = result.name
        source = Name(name.value, made.source.version)
        self._reach(draft, source)
        also = [Name(name.value, n.version) for n in made.also]
        for earlier in also:
            self._reach(draft, earlier)
        also += [self._reached(draft, ask) for ask in self.converted.counts.get((draft.number, name), ())]
        return replace(made, source=source, result=result, also=tuple(also))


class _Before:
    """The functions from which each function follows."""

    def __init__(self, lowering: Provided) -> None:
        self.lowering = lowering
        self.found: dict[bool, list[set[int]]] = {}

    def of(self, number: int, *, back: bool) -> Collection[int]:
        """The functions before one; with `back`, those to which it also returns a gradient."""
        if back not in self.found:
            self.found[back] = self._all(back)
        return self.found[back][number]

    def _all(self, back: bool) -> list[set[int]]:
        makers: dict[str, int] = {}
        found: list[set[int]] = [set() for _ in self.lowering.segments]
        for number, operator in in_order(self.lowering.segments):
            near = {makers[o.value] for o in operator.inputs if o.value in makers and self._counts(o.value, back)}
            for other in near - {number} - found[number]:
                found[number] |= {other} | found[other]
            makers.update((o.value, number) for o in operator.outputs)
        return found

    def _counts(self, value: str, back: bool) -> bool:
        return not back or value in self.lowering.learning


# -- gradients ---------------------------------------------------------------------------------------------------------


def _finished(draft: _Draft, live: set[Name], learning: frozenset[str], losses: tuple[str, ...]) -> Function:
    """The function of a draft; `live` are its values to which a gradient comes back, `learning` those of the graph that
    have one."""
    segment, body = draft.segment, tuple(_given_none(i, live) for i in draft.body)
    learns = any(o.value in learning for op in segment.operators for o in op.outputs)
    outputs = tuple(draft.outputs.values())
    parameters = tuple(p if p.var.name in live else Parameter(replace(p.var, gradient=None)) for p in draft.parameters)
    return Function(
        draft.number,
        f"block{draft.number}",
        segment.submesh,
        segment.time,
        tuple(_given_back(i, live) for i in draft.inputs),
        tuple(draft.prepared),
        parameters,
        (Section("", False, body),),
        outputs,
        _backward(segment, parameters) if learns else Backward.NONE,
        segment.stage,
        next((k for k, o in enumerate(outputs) if o.name.value in losses), None),
        again=segment.again if learns else None,
    )


def _with_repeated(functions: list[Function]) -> Iterator[Function]:
    """Yields functions with `again` set in the outputs that others read which run again together with them. What came
    in a message is kept instead."""
    read: dict[int, set[str]] = {f.number: set() for f in functions if f.again is not None}
    for function in functions if read else ():
        for given in function.inputs:
            if function.is_made_again(given, functions[given.producer]):
                read[given.producer].add(given.slot)
    for function in functions:
        slots = read.get(function.number, set())
        outputs = (replace(o, again=True) if o.slot in slots else o for o in function.outputs)
        yield replace(function, outputs=tuple(outputs)) if slots else function


def _backward(segment: Segment, parameters: tuple[Parameter, ...]) -> Backward:
    if not segment.in_halves:
        return Backward.WHOLE
    return Backward.HALVES if any(p.var.gradient is not None for p in parameters) else Backward.DGRAD


def _live(body: list[Instr], learning: frozenset[str]) -> set[Name]:
    """The values that get a gradient from an operator of the function."""
    live: set[Name] = set()
    for instr in reversed(body):
        match instr:
            case OpPart():
                if any(v.name.value in learning for v in instr.results):
                    live.update(instr.reads)
            case Conversion():
                if instr.result.name in live:
                    live.update(reads_of(instr))
            case Write():
                pass
    return live


def _given_none(instr: Instr, live: set[Name]) -> Instr:
    """The instruction; a Conversion to whose result no reader gives a gradient loses its backward."""
    if isinstance(instr, Conversion) and instr.result.gradient is not None and instr.result.name not in live:
        return replace(instr, result=replace(instr.result, gradient=None), backward=())
    return instr


def _given_back(given: FunctionInput, live: set[Name]) -> FunctionInput:
    """The input; without a gradient if no operator of the function gives it one."""
    if given.var.name in live:
        return given
    return replace(given, var=replace(given.var, gradient=None), gradient=False)
