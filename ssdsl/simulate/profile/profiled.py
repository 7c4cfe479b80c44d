"""The costs of a program from a profile: the time of a task is that of its instructions, and the engine's for the task.

The backward of a task is that of each instruction, plus the gradients of its function's weights: the first gradient of
a step is taken as it is, later ones are added to it. A recomputed section runs forward again.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import assert_never

from ssdsl.analyse.collectives import OfGather, SizedCollective, learns_weights, of_action, of_homes, of_task, of_travel
from ssdsl.analyse.gathers import Staying
from ssdsl.analyse.program_index import ProgramIndex, flat_bytes, size_bytes
from ssdsl.ir.comm import Message, Transfer
from ssdsl.ir.function import Backward, Called, Function, OpPart, Section, Side, Write, results_of
from ssdsl.ir.param import FlatParam
from ssdsl.ir.program import (
    Compute,
    FlatAction,
    Free,
    GatherParam,
    OnFlat,
    Program,
    Role,
    ScatterGrads,
    Start,
    Traced,
    Travel,
    Update,
    Wait,
    WaitReduce,
)
from ssdsl.model.graph import ITEMSIZE
from ssdsl.plan.plan import Phase
from ssdsl.simulate.price.costs import FREE, CommCost, Cost, total
from ssdsl.simulate.profile.kernel_key import kernel_key
from ssdsl.simulate.profile.profile import IN_A_TASK, Curve, Profile


@dataclass
class Profiled:
    """The costs of a program. `lacking` collects the times that the profile does not have; they count as 0."""

    facts: ProgramIndex
    profile: Profile
    lacking: dict[str, None] = field(default_factory=dict)
    _words: dict[tuple[int, Called], str] = field(default_factory=dict)

    @property
    def program(self) -> Program:
        """The program."""
        return self.facts.program

    @property
    def cores(self) -> int:
        """The cores of the machine."""
        return self.profile.machine.cores

    def of(self, action: Traced, role: Role) -> Cost:
        """The cost of an action on each device of a role."""
        match action:
            case Compute():
                return self._task(action)
            case Start():
                return self._message(action)
            case Travel():
                function = self.program.functions[action.function]
                calls = of_travel(function, action.output, gradient=action.gradient)
                return total(self._collective(call, function) for call in calls)
            case OnFlat():
                flat = self.program.flats[action.flat]
                cost = total(self._collective(c, flat) for c in of_action(action, flat))
                return total((cost, *self._beside(action, flat, cost)))
            case Update():
                held = sum(flat_bytes(f, f.sharded.optimizer) for f in self.program.flats_of(role))
                homes = (self._collective(c, f) for f in self.program.flats_of(role) for c in of_homes(self.facts, f))
                return total((Cost(self._growing("update", held) + self.profile.step_s), *homes))
            case Wait() | Free():
                return FREE
            case _:
                assert_never(action)

    def _beside(self, action: FlatAction, flat: FlatParam, cost: Cost) -> Iterator[Cost]:
        """Yields what an action takes beside its collectives: copies of what it sends; the sum of a tied weight."""
        if isinstance(action, WaitReduce):
            yield self._tie(flat)
        elif cost.sent and not isinstance(action, GatherParam):
            before = flat.sharded.weights if isinstance(action, ScatterGrads) else flat.sharded.grads
            yield Cost(0.0, self._growing("reduce", flat_bytes(flat, before)))

    # -- tasks ---------------------------------------------------------------------------------------------------------

    def _task(self, task: Compute) -> Cost:
        function, phase = self.program.functions[task.function], task.phase
        stay = self.facts.stays(task)
        computing = sum(self._instructions(function, phase))
        computing += self._growing(f"task {_measured(phase).word}", instructions(function))
        computing += sum(self._gradients(function, phase))
        computing += sum(self._gathers(function, phase, stay))
        awaited = (c for c in of_task(self.facts, function, phase, stay) if c.origin not in function.departing)
        met = (self._collective(c.call, function) for c in awaited)
        return total((Cost(computing), *met))

    def of_sections(self, function: Function, role: Role, phase: Phase) -> list[float]:
        """The seconds of the instructions of each section."""
        return [sum(self._of_section(function, section, phase)) for section in function.sections]

    def _instructions(self, function: Function, phase: Phase) -> Iterator[float]:
        for section in function.sections:
            yield from self._of_section(function, section, phase)

    def _of_section(self, function: Function, section: Section, phase: Phase) -> Iterator[float]:
        for called in section.called():
            if section.recompute and phase.of_inputs:
                yield self._time(function, called, Phase.FORWARD)
            if runs(function, called, phase):
                yield self._time(function, called, phase)

    def _time(self, function: Function, called: Called, phase: Phase) -> float:
        words, name = self.words(function, called), _measured(phase).word
        found = self.profile.operators.get(words, {}).get(name)
        if found is None:
            self.lacking[f"{name} of {words}"] = None
            return 0.0
        return found

    def words(self, function: Function, called: Called) -> str:
        """The words by which the profile knows an instruction, or a compiled run."""
        key = function.number, called
        if key not in self._words:
            self._words[key] = kernel_key(self.facts, function, called)
        return self._words[key]

    def _gradients(self, function: Function, phase: Phase) -> Iterator[float]:
        """Yields the seconds for the gradient of each weight, as the mean over the function's tasks; with a backward in
        halves they are in the operators' times. ZeRO-2 reduces each gradient at once, so that each one is a first."""
        if phase is not Phase.BACKWARD:
            return
        tasks = math.prod(index.parts for index in function.time)
        for flat, size in gradients(self.facts, function):
            first = tasks if flat.completion.each else 1
            yield self._growing("first gradient", size) * first / tasks
            if tasks > first:
                yield self._growing("next gradient", size) * (tasks - first) / tasks

    def _gathers(self, function: Function, phase: Phase, stay: Staying) -> Iterator[float]:
        """Yields the seconds of ZeRO-3's copies, beside its communication."""
        for name, size in copies(self.facts, function, phase, stay):
            yield self._growing(name, size)

    # -- communication -------------------------------------------------------------------------------------------------

    def _collective(self, found: SizedCollective, where: Function | FlatParam) -> Cost:
        """The cost of a collective in a task: by the times recorded in tasks, if these cover its size."""
        ranks = math.prod(n for axis, n in where.submesh.axes if axis in found.axes)
        met = self.profile.network.get((IN_A_TASK.format(found.kind), ranks))
        return self._among(found.kind, found.size_bytes, ranks, met)

    def _among(self, kind: str, size: int, ranks: int, met: Curve | None = None) -> Cost:
        """The cost of communication among ranks: by the curve `met`, which includes waiting, if it covers the size;
        else as if all ranks came at the same time."""
        if ranks < 2:
            return FREE
        curve = met if met is not None and met.covers(size) else self.profile.network.get((kind, ranks))
        if curve is None:
            self.lacking[f"{kind} among {ranks} ranks"] = None
            return Cost(0.0, 0.0, (CommCost(kind, "", 1, size, ranks),))
        time_s = curve.reaching(size)
        return Cost(0.0, time_s, (CommCost(kind, "", 1, size, ranks, time_s),))

    def _message(self, action: Start) -> Cost:
        """The cost of a message for the device that receives most. Of the time of a send, that of an empty one is its
        latency."""
        message = self.program.messages[action.message]
        size, ranks = received_bytes(message, action.gradient), message.ends(action.gradient)[1].size
        whole_s = self._among("send", size, 2).communication_s
        curve = self.profile.network.get(("send", 2))
        latency_s = min(whole_s, curve.empty_s) if curve is not None else 0.0
        return Cost(0.0, whole_s - latency_s, (CommCost("send", "", 1, size, ranks),), latency_s)

    def _tie(self, flat: FlatParam) -> Cost:
        """The cost of summing a tied weight's gradients over the devices of all submeshes that hold the same part."""
        return self._among("all_reduce", flat_bytes(flat, flat.sharded.optimizer), len(flat.completion.tied))

    def _growing(self, name: str, size: int) -> float:
        curve: Curve | None = self.profile.growing.get(name)
        if curve is None:
            self.lacking[f"{name}, of any size"] = None
            return 0.0
        return curve.growing(size)


def received_bytes(message: Message, gradient: bool) -> int:
    """The bytes of a message on the device that receives most."""
    move = message.backward if gradient and isinstance(message, Transfer) else message.forward
    assert move is not None
    received: dict[tuple[int, ...], int] = {}
    for piece in move.pieces:
        elements = math.prod(length for _, length in piece.target_box)
        received[piece.target] = received.get(piece.target, 0) + elements
    return max(received.values(), default=0) * ITEMSIZE.get(message.dtype, 4)


def _measured(phase: Phase) -> Phase:
    """The phase of the times that a profile has of a phase: a forward takes as long when it runs again."""
    return Phase.FORWARD if phase.is_forward else phase


# -- the content of a task, for users of a profile and for its recorder ------------------------------------------------


def instructions(function: Function) -> int:
    """The number of instructions that a function calls, of a compiled run together one."""
    return len(function.called())


def runs(function: Function, called: Called, phase: Phase) -> bool:
    """Whether an instruction takes time in a phase: in forward all do, in backward those whose results get a gradient,
    in the second half operators on weights. A compiled run does if one of its operators does."""
    if phase.is_forward:
        return True
    if isinstance(called, tuple):
        return any(runs(function, op, phase) for op in called)
    instr = called
    learns = any(var.gradient is not None for var in results_of(instr)) and not isinstance(instr, Write)
    if phase is Phase.WGRAD:
        return learns and isinstance(instr, OpPart) and instr.sides is not None and Side.WEIGHT in instr.sides
    return learns and function.backward is not Backward.NONE


def gradients(facts: ProgramIndex, function: Function) -> Iterator[tuple[FlatParam, int]]:
    """Yields the flat parameter and the bytes of each gradient that backward gives a weight; with ZeRO-3, those of a
    shard for each gather that gets a gradient."""
    flats = {w: f for f in facts.program.flats if f.submesh == function.submesh for w in f.weights}
    for parameter in function.parameters:
        flat = flats.get(parameter.var.name.value)
        if parameter.var.gradient is not None and flat is not None and not flat.sharded.weights:
            yield flat, size_bytes(parameter.var)
    for number, section in enumerate(function.sections):
        for flat in (facts.program.flats[n] for n in section.gathers):
            if learns_weights(facts, function, number, flat):
                yield flat, flat_bytes(flat, flat.sharded.weights)


def copies(facts: ProgramIndex, function: Function, phase: Phase, stay: Staying) -> Iterator[tuple[str, int]]:
    """Yields ZeRO-3's copies in a task, and the memory that it frees after a section: (`gather`, `scatter` or `drop`,
    bytes). Freeing what only backward gathers is part of its `scatter`."""
    kinds = {"all_gather": "gather", "reduce_scatter": "scatter", "all_reduce": "scatter"}
    for collective in of_task(facts, function, phase, stay):
        if isinstance(collective.origin, OfGather):
            yield kinds[collective.call.kind], collective.call.size_bytes
    runs_again = phase.of_inputs
    for section in function.sections:
        if phase.is_forward or (runs_again and section.recompute):
            yield from (("drop", flat_bytes(facts.program.flats[number])) for number in section.gathers)
