"""Values between functions: the type that arrives at an input, and the type of its gradient back at the producer.

Parts may be joined to the parts before them: with the runs 0..5, 5..9, 9..13 the earlier parts are 0..0, 0..5, 0..9,
and the joined ones 0..5, 0..9, 0..13. A function is then its own producer: such an input first gets the type written at
it; once the function is typed, this is compared with what it leaves. That is no circle: a task runs after those whose
parts it reads (`roles/roles.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ssdsl.ir.comm import Exchange, KeepFirst, Narrow, Signal, Transfer, cuts_of
from ssdsl.ir.function import Conversion, Function, FunctionInput
from ssdsl.ir.value import Axis, Name, Time
from ssdsl.model.graph import Graph
from ssdsl.prove.facts import ProofFacts, TypedFunction, Walked
from ssdsl.prove.failures import Rule, Wrong
from ssdsl.prove.functions.alike import Classes
from ssdsl.prove.types.local import Factors, Local, designated, end_to_end, of_type
from ssdsl.prove.types.moves import check_move
from ssdsl.prove.types.rows import check_apart
from ssdsl.prove.types.steps import after
from ssdsl.record import replace

# -- steps in time -----------------------------------------------------------------------------------------------------


def check_in_time(graph: Graph, instr: Conversion, types: Mapping[Name, Local], shape: Factors) -> None:
    """Raises Wrong unless a conversion is a single step in time, on values that its task has: an `Exchange` joins the
    running part to the earlier parts in `also`."""
    step, is_alone = instr.forward[0], len(instr.forward) == 1 and not instr.backward
    if not is_alone or not isinstance(step, Narrow | KeepFirst | Exchange):
        raise Wrong(Rule.STEP, "one step in time, of what a task has", (*instr.forward, *instr.backward))
    for cut in cuts_of(step):
        check_apart(graph, instr.source.value, cut.dim)
    if not isinstance(step, Exchange):
        if instr.also:
            raise Wrong(Rule.STEP, "no other value", instr.also)
        return
    (time, source), earlier = (Time(step.axes[0]), types[instr.source]), [types.get(n) for n in instr.also]
    without = source.freeing(time)
    own, all_ = (designated(shape, frozenset(without.fixed()), cut).at or () for cut in cuts_of(step))
    before = earlier[0].digit(time) if len(earlier) == 1 and earlier[0] is not None else None
    if before is None or instr.also[0].value != instr.source.value or earlier != [without.fixing(time, before)]:
        raise Wrong(Rule.READ, f"earlier parts of {instr.source.value}", earlier)
    joined = [end_to_end((*behind, *runs)) for behind, runs in zip(before.at or (), own, strict=False)]
    if step.sums or joined != [end_to_end(runs) for runs in all_]:
        raise Wrong(Rule.NEST, f"parts behind those before them: {all_}", before)


def check_returned(function: Function, given: FunctionInput, name: Name) -> None:
    """Raises Wrong unless a value is joined to its own earlier parts. Then all gradients are of one value: a part's
    gradient is the sum of its own and those that later parts give back to it."""
    joined = [(i.source, i.also) for i in function.body() if isinstance(i, Conversion)]
    if (name, (given.var.name,)) not in joined:
        raise Wrong(Rule.COUNTED, f"an extension of {name} by its own earlier parts", given.var.name)


# -- values between functions ------------------------------------------------------------------------------------------


Gradients = tuple[Local | None, ...]  # the gradients of a section's values, in the order of its names


@dataclass(slots=True)
class Flow:
    """The functions that were typed so far, and the gradients of each of their outputs. `walked` and `walked_back`
    hold, by class of section, the inputs and results of its first section."""

    facts: ProofFacts
    classes: Classes
    typed: dict[int, TypedFunction] = field(default_factory=dict)
    transfers: dict[tuple[str, int], Transfer] = field(default_factory=dict)
    returned: dict[tuple[int, Name], list[tuple[Local, str]]] = field(default_factory=dict)
    walked: dict[int, Walked] = field(default_factory=dict)
    walked_back: dict[int, tuple[Gradients, Gradients]] = field(default_factory=dict)

    def note_messages(self) -> None:
        """Fills `transfers`, by target slot and consumer, and checks that signals lead from the devices of one function
        to those of the other."""
        for message in self.facts.program.messages:
            if isinstance(message, Signal):
                self._check_signal(message)
                continue
            if (message.target_slot, message.consumer) in self.transfers:
                self.facts.fail(Rule.TWICE, "the messages", message.value, "one transfer", message.target_slot)
            self.transfers[message.target_slot, message.consumer] = message

    def _check_signal(self, signal: Signal) -> None:
        where, functions = f"signal {signal.number}", self.facts.program.functions
        ends = functions[signal.producer].submesh, functions[signal.consumer].submesh
        if ends != (signal.source, signal.target):
            self.facts.fail(Rule.MESSAGE, where, "", [str(s) for s in ends], f"{signal.source}, {signal.target}")
            return
        try:
            check_move(signal.forward, Local(), signal.source.axes, Local(), signal.target.axes, ((1,),))
        except Wrong as wrong:
            self.facts.fail_with(wrong, where, "", signal.target.mesh.span)

    # -- forward -----------------------------------------------------------------------------------------------------

    def check_earlier(self, function: Function) -> None:
        """Adds a failure if a typed function's inputs of its own earlier parts differ from its results."""
        for given in (i for i in function.inputs if i.producer == function.number):
            where, span = f"function `{function.name}`", function.submesh.mesh.span
            try:
                arriving, written = self.arriving(given, function), of_type(given.var.type, function.submesh.axes)
                if arriving != written:
                    self.facts.fail(Rule.ANNOTATED, where, given.var.name, arriving, written, span)
            except Wrong as wrong:
                self.facts.fail_with(wrong, where, given.var.name, span)

    def entering(self, given: FunctionInput, function: Function) -> Local:
        """The type of an input before its function is typed. Raises Wrong."""
        if given.producer == function.number:
            return of_type(given.var.type, function.submesh.axes)
        return self.arriving(given, function)

    def arriving(self, given: FunctionInput, function: Function) -> Local:
        """The type of an input, derived from its producer's result. Raises Wrong."""
        local, value = self._delivered(given, function), given.var.name.value
        names = [axis for m in given.merges for axis in m.axes]
        if len(set(names)) != len(names) or not all(m.in_time for m in given.merges):
            raise Wrong(Rule.MERGE, "each index once", given.merges)
        for merge in given.merges:
            for cut in cuts_of(merge):
                check_apart(self.facts.graph, value, cut.dim)
            if isinstance(merge, Exchange):
                self._check_read(merge, given, function)
        local = after(given.merges, local, self.facts.shape(value), (), given.time)
        for index in given.time:
            if index.name not in names and index not in function.time:
                raise Wrong(Rule.INDEX, f"an index of the function, or its parts made one: {index}", function.time)
        return local

    def _check_read(self, merge: Exchange, given: FunctionInput, function: Function) -> None:
        """Raises Wrong unless each part of a function reads a region, as the runtime joins it: of the function's own
        results all parts before the running one, and of others positions of an axis that is not in blocks."""
        have, need = merge.source.at or (), merge.target.at or ()
        before = [end_to_end(run for runs in have[:part] for run in runs) for part in range(len(need))]
        is_own = given.producer == function.number
        fits = before == [end_to_end(runs) for runs in need] if is_own else merge.target.outer == 1
        if {t.name: t.parts for t in function.time}.get(merge.axes[0]) != len(need) or not fits or merge.sums:
            raise Wrong(Rule.MERGE, f"a region for each part of {function.time}", merge)

    def _source(self, given: FunctionInput, function: Function) -> tuple[TypedFunction, Name, Transfer | None]:
        """The producer of an input, the value's name there, and its transfer, if it has one. Raises Wrong."""
        producer = self.typed.get(given.producer)
        if producer is None or producer.function.time != given.time:
            raise Wrong(Rule.SOURCE, "a function before, with the same indices", f"{given.producer}: {given.time}")
        source = producer.function
        transfer = self.transfers.get((given.slot, function.number))
        slot = given.slot if transfer is None else transfer.source_slot
        if given.message != (None if transfer is None else transfer.number):
            raise Wrong(Rule.SOURCE, "the transfer to its slot" if transfer else "no transfer", given.message)
        if transfer is None and source.submesh != function.submesh:
            raise Wrong(Rule.SOURCE, f"a transfer to {function.submesh}", given.slot)
        if transfer is not None:
            ends = (transfer.producer, transfer.source, transfer.target, transfer.time)
            if ends != (source.number, source.submesh, function.submesh, source.time):
                raise Wrong(Rule.SOURCE, f"a transfer from function {source.number}", f"transfer {transfer.number}")
        name = producer.slots.get(slot)
        if name is not None and any(o.slot == slot and not o.read for o in source.outputs):
            raise Wrong(Rule.SOURCE, "an output that is kept for readers", slot)
        if name is None or name.value != given.var.name.value or (transfer and transfer.value != name.value):
            raise Wrong(Rule.SOURCE, given.var.name.value, f"{slot}: {name}")
        return producer, name, transfer

    def _delivered(self, given: FunctionInput, function: Function) -> Local:
        producer, name, transfer = self._source(given, function)
        left = producer.types[name]
        if transfer is None:
            return left
        check_apart(self.facts.graph, name.value)
        self._check_carried(transfer, left)
        arrived = self._claimed(given, function, left)
        shape = self.facts.shape(name.value)
        check_move(transfer.forward, left, transfer.source.axes, arrived, transfer.target.axes, shape)
        return arrived

    def _claimed(self, given: FunctionInput, function: Function, left: Local) -> Local:
        """The type in which a value arrives: its layout as written at the input, its parts in time as they left."""
        claim = of_type(replace(given.var.type, time=(), owed=()), function.submesh.axes)
        time = frozenset((c, d) for c, d in left.digits if isinstance(c, Time))
        owed = frozenset(c for c in left.partial if isinstance(c, Time))
        return Local(claim.digits | time, claim.partial | owed)

    def _check_carried(self, transfer: Transfer, left: Local) -> None:
        uneven = {(d.factor, c.name) for c, d in left.digits if d.at is not None}
        written = {(f, t.name) for f, t in transfer.uneven}
        if uneven != written or any(t not in transfer.time for _, t in transfer.uneven):
            raise Wrong(Rule.PIECES, f"unequal parts of {uneven}", written)
        dtype = self.facts.graph.values[transfer.value].dtype
        if transfer.dtype != dtype:
            raise Wrong(Rule.DTYPE, dtype, transfer.dtype)

    # -- backward ----------------------------------------------------------------------------------------------------

    def give_back(self, given: FunctionInput, function: Function, gradient: Local) -> None:
        """Notes the gradient of an input at the output that it comes from. Raises Wrong.

        All tasks of the function that read a part add to its gradient: over an index that the two functions do not
        share, each task must give one addend.
        """
        producer, name, transfer = self._source(given, function)
        if given.producer == function.number:
            check_returned(function, given, name)
            return
        merged = [axis for m in given.merges for axis in m.axes]
        shared = {t.name for t in given.time}.difference(merged)
        read = {axis for m in given.merges if isinstance(m, Exchange) for axis in m.axes}
        for index in function.time:
            if index.name in shared or (index.name in read and gradient.digit(Time(index.name)) is not None):
                continue
            if Time(index.name) not in gradient.partial:
                raise Wrong(Rule.COUNTED, f"one addend for each {index.name}", gradient)
            gradient = gradient.summed(Time(index.name))
        left = producer.types[name]
        for time in map(Time, merged):
            if (digit := left.digit(time)) is not None:
                gradient = gradient.freeing(time).fixing(time, digit)
        if transfer is not None:
            gradient = self._sent_back(transfer, gradient, left, name)
        who = f"function `{function.name}`"
        self.returned.setdefault((producer.function.number, name), []).append((gradient, who))

    def _sent_back(self, transfer: Transfer, gradient: Local, left: Local, name: Name) -> Local:
        if transfer.backward is None:
            raise Wrong(Rule.NO_GRADIENT, "a transfer of the gradient", f"transfer {transfer.number} has none")
        if any(isinstance(c, Axis) for c in gradient.partial):
            raise Wrong(Rule.PIECES, "a gradient whose sums over devices are complete", gradient)
        back = Local(left.digits, gradient.partial)
        shape = self.facts.shape(name.value)
        check_move(transfer.backward, gradient, transfer.target.axes, back, transfer.source.axes, shape)
        return back
