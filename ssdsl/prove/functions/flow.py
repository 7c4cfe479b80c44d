"""Values between functions: the type that arrives at an input, and the type of its gradient back at the producer.

Parts may be joined to the parts before them: with the runs 0..5, 5..9, 9..13 the earlier parts are 0..0, 0..5, 0..9,
and the extended ones 0..5, 0..9, 0..13. An input of a function's own earlier parts first gets the type written at it;
once the function is typed, this is compared with what it leaves. That is no circle: a task runs behind those whose
parts it reads (`roles/roles.py`).
"""

from dataclasses import dataclass, field, replace
from typing import assert_never

from ssdsl.ir.comm import Signal, Transfer
from ssdsl.ir.function import Concat, Earlier, Extend, Function, FunctionInput, Sum
from ssdsl.ir.value import Axis, Name, Time
from ssdsl.prove.facts import ProofFacts, TypedFunction, Walked
from ssdsl.prove.failures import Rule, Wrong
from ssdsl.prove.functions.alike import Classes
from ssdsl.prove.types.local import Digit, Factors, Local, designated, in_parts, of_type
from ssdsl.prove.types.moves import check_move
from ssdsl.prove.types.rows import check_apart

# -- parts joined to those before them ---------------------------------------------------------------------------------


def is_earlier(given: FunctionInput) -> bool:
    """Whether an input has the parts before the running one."""
    return any(isinstance(m, Earlier) for m in given.merges)


def before(local: Local, merge: Earlier, shape: Factors) -> Local:
    """The type of the earlier parts of a tensor along an index. Raises Wrong unless its parts are runs, end to end."""
    time, digit = Time(merge.index.name), local.part(Time(merge.index.name), Rule.MERGE)
    free = local.freeing(time)
    found = designated(shape, frozenset(free.fixed()), merge.cut)
    if found != digit:
        raise Wrong(Rule.MERGE, digit, f"{merge.cut}: {found}")
    at = tuple(((0, start),) for start, _ in _runs(digit, shape))
    return free.fixing(time, Digit(digit.factor, 1, digit.parts, at))


def extended(instr: Extend, local: Local, earlier: Local, shape: Factors) -> Local:
    """The type of a part joined to the parts before it. Raises Wrong if `earlier` is something else."""
    time = Time(instr.index.name)
    wanted = before(local, Earlier(instr.index, instr.cut), shape)
    if earlier != wanted:
        raise Wrong(Rule.READ, wanted, earlier)
    digit = local.part(time, Rule.MERGE)
    behind = in_parts(digit.factor, digit.size_in(shape), tuple(((0, end),) for _, end in _runs(digit, shape)))
    return local.freeing(time) if behind is None else local.freeing(time).fixing(time, behind)


def check_returned(function: Function, given: FunctionInput, name: Name, merge: Earlier) -> None:
    """Raises Wrong unless a value is extended by its own earlier parts. Then all gradients are of one value: a part's
    gradient is the sum of its own and those that later parts give back to it."""
    for instr in function.body():
        if isinstance(instr, Extend):
            found = (instr.earlier, instr.source, instr.index, instr.cut)
            if found == (given.var.name, name, merge.index, merge.cut):
                return
    raise Wrong(Rule.COUNTED, f"an extension of {name} by its own earlier parts", given.var.name)


def _runs(digit: Digit, shape: Factors) -> tuple[tuple[int, int], ...]:
    size = digit.size_in(shape)
    if digit.at is None:
        found = tuple((k * digit.stride, (k + 1) * digit.stride) for k in range(digit.parts))
    else:
        found = tuple(run for runs in digit.at for run in runs)
    ends = [0, *(end for _, end in found)]
    if len(found) != digit.parts or [start for start, _ in found] != ends[:-1] or ends[-1] != size:
        raise Wrong(Rule.NEST, f"runs of {size}, end to end", digit)
    return found


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
        for given in filter(is_earlier, function.inputs):
            where, span = f"function `{function.name}`", function.submesh.mesh.span
            try:
                arriving, written = self.arriving(given, function), of_type(given.var.type, function.submesh.axes)
                if arriving != written:
                    self.facts.fail(Rule.ANNOTATED, where, given.var.name, arriving, written, span)
            except Wrong as wrong:
                self.facts.fail_with(wrong, where, given.var.name, span)

    def entering(self, given: FunctionInput, function: Function) -> Local:
        """The type of an input before its function is typed. Raises Wrong."""
        if not is_earlier(given):
            return self.arriving(given, function)
        if given.producer != function.number:
            raise Wrong(Rule.SOURCE, "earlier parts of the function's own", given.producer)
        return of_type(given.var.type, function.submesh.axes)

    def arriving(self, given: FunctionInput, function: Function) -> Local:
        """The type of an input, derived from its producer's result. Raises Wrong."""
        local = self._delivered(given, function)
        names = [m.index.name for m in given.merges]
        if len(set(names)) != len(names):
            raise Wrong(Rule.MERGE, "each index once", names)
        for merge in given.merges:
            if merge.index not in given.time:
                raise Wrong(Rule.MERGE, f"an index of its producer: {given.time}", merge.index)
            time = Time(merge.index.name)
            match merge:
                case Concat():
                    digit, local = local.part(time, Rule.MERGE), local.freeing(time)
                    shape = self.facts.shape(given.var.name.value)
                    check_apart(self.facts.graph, given.var.name.value, merge.cut.dim)
                    found = designated(shape, frozenset(local.fixed()), merge.cut)
                    if _plain(found, shape) != digit:
                        raise Wrong(Rule.MERGE, digit, f"{merge.cut}: {found}")
                    local = _region_read(merge, function, local, shape)
                case Earlier():
                    local = before(local, merge, self.facts.shape(given.var.name.value))
                case Sum():
                    if time not in local.partial:
                        raise Wrong(Rule.MERGE, f"a partial sum over {time.name}", local)
                    local = local.summed(time)
                case _:
                    assert_never(merge)
        for index in given.time:
            if index.name not in names and index not in function.time:
                raise Wrong(Rule.INDEX, f"an index of the function, or its parts made one: {index}", function.time)
        return local

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
        for merge in given.merges:
            if isinstance(merge, Earlier):
                check_returned(function, given, name, merge)
                return
        merged = {m.index.name for m in given.merges}
        shared = {t.name for t in given.time} - merged
        read = {m.index.name for m in given.merges if isinstance(m, Concat) and m.reads is not None}
        for index in function.time:
            if index.name in shared or (index.name in read and gradient.digit(Time(index.name)) is not None):
                continue
            if Time(index.name) not in gradient.partial:
                raise Wrong(Rule.COUNTED, f"one addend for each {index.name}", gradient)
            gradient = gradient.summed(Time(index.name))
        left = producer.types[name]
        for merge in given.merges:
            digit = left.digit(Time(merge.index.name))
            if isinstance(merge, Concat) and digit is not None:
                gradient = gradient.freeing(Time(merge.index.name)).fixing(Time(merge.index.name), digit)
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


def _plain(digit: Digit, shape: Factors) -> Digit | None:
    """A digit with regions as the plain digit, if they are equal; None if each part is the whole factor."""
    return digit if digit.at is None else in_parts(digit.factor, digit.size_in(shape), digit.at)


def _region_read(merge: Concat, function: Function, joined: Local, shape: Factors) -> Local:
    """The type that each part of a function reads of joined parts: a region, or all of them. Raises Wrong."""
    if merge.reads is None:
        return joined
    index = next((t for t in function.time if t.name == merge.index.name), None)
    if index is None or index.parts != len(merge.reads) or merge.cut.outer != 1:
        raise Wrong(Rule.MERGE, f"a region for each {merge.index.name} of {function.time}", merge.reads)
    place = replace(merge.cut, count=index.parts, at=merge.reads)
    digit = _plain(designated(shape, frozenset(joined.fixed()), place), shape)
    return joined if digit is None else joined.fixing(Time(index.name), digit)
