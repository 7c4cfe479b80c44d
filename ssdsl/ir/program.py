"""The program: everything that a training step does on all devices. Symmetric devices are described once.

A role stands for all devices that run the same code, a function for every device of its submesh, a message for the
sends and receives of all its devices. So a program's size does not depend on the size of any axis that no
placement fixes.

Actions are the list of what a role does in a training step, in order. Communication between devices is two actions:
`Start` posts a send or a receive without waiting; `Wait` comes before the task that needs the received value. `Free`
drops a value after its last reader. A large plan has half a million of `Compute`, `Start`, `Wait` and `Free`: they are
named tuples, which Python creates, hashes and compares fastest.
"""

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import NamedTuple, TypeVar

from ssdsl.ir.comm import Message
from ssdsl.ir.function import Function, Prologue
from ssdsl.ir.layout import Submesh
from ssdsl.ir.param import FlatParam, Param
from ssdsl.ir.value import Name
from ssdsl.model.graph import Graph
from ssdsl.plan.plan import Phase, Plan
from ssdsl.record import Record, field
from ssdsl.text.source import Span

# -- actions -----------------------------------------------------------------------------------------------------------


At = tuple[int, ...]


class Compute(NamedTuple):
    """A function at one coordinate in one phase: forward, forward again, backward, or one half of backward."""

    function: int
    at: At
    phase: Phase


class End(Enum):
    """The end of a message at which a role is: it sends, receives, or both."""

    SEND = "send"
    RECEIVE = "receive"
    BOTH = "exchange"  # some of its devices send to others of them


class Start(NamedTuple):
    """Posts this role's end of a message, which carries a value or its gradient."""

    message: int
    at: At
    gradient: bool
    end: End


class Wait(NamedTuple):
    """Waits until a message has arrived whose receive was posted."""

    message: int
    at: At
    gradient: bool


class Free(NamedTuple):
    """Drops a part of a value that no later action on this device reads."""

    slot: str
    at: At


class OnFlat(Record):
    """An action on a flat parameter."""

    flat: int


class BeginReduce(OnFlat):
    """Starts to reduce the gradient of a flat parameter. A start `within` the task in front of it does not wait for the
    end of that backward, which adds to the gradient of each weight: it comes as soon as these are there, and the starts
    before it have begun."""

    within: bool = False


class ScatterGrads(BeginReduce):
    """Starts to reduce the gradient that a backward has left to the devices that hold its parts (ZeRO-2). The scatter
    that started before it has then arrived, so that few gradients are whole at a time."""


class StartReduce(BeginReduce):
    """Starts to complete the gradient of a flat parameter, once its last addend has been computed."""


class WaitReduce(OnFlat):
    """Waits until the gradient of a flat parameter is complete, or all of its addends have been scattered."""


class Update(Record):
    """The optimizer's step on all flat parameters of the role."""


class KeepWeights(OnFlat):
    """From here on, what the next task gathers of a flat parameter stays: whole, or in the parts that `FlatParam.kept`
    says, from which later tasks gather it."""


class DropWeights(OnFlat):
    """Frees the weights of a flat parameter that stayed."""


class GatherParam(OnFlat):
    """Starts to gather the weights that other devices have updated: those of which a device holds more than it updates.
    They travel while the next step's forward runs, which awaits them section by section (`Section.awaits`); that step's
    update awaits those that no task reads."""


FlatAction = ScatterGrads | StartReduce | WaitReduce | KeepWeights | DropWeights | GatherParam
Action = Compute | Start | Wait | Free | Update | FlatAction


class Travel(NamedTuple):
    """The way of an output in flight, or of its gradient, between two tasks. It is no action of a role: the task that
    computes it starts it at its end, and the task that reads it awaits it before it begins."""

    function: int
    output: int
    at: At
    gradient: bool


Traced = Action | Travel  # what a role's time goes to


# -- the program -------------------------------------------------------------------------------------------------------


class Loss(Record):
    """The reported loss, or an addend of it: an output of a function, summed over its parts in time and over `axes` of
    its submesh."""

    function: int
    name: Name
    axes: tuple[str, ...]


class Result(Record):
    """An output that was asked for by name: a value that a function leaves in a slot until the end of the step, with
    its sums over devices taken. Its parts along the function's indices in time are joined, or summed, as its type
    says."""

    name: str
    function: int
    value: Name
    slot: str


class Role(Record):
    """Devices that run the same code, with their actions in a step, in order."""

    name: str
    submesh: Submesh
    actions: tuple[Action, ...]

    def is_in(self, submesh: Submesh) -> bool:
        """Whether these devices lie in a submesh: either all of them do, or none."""
        own = self.submesh
        if own is submesh:
            return True
        if own.mesh is not submesh.mesh and own.mesh != submesh.mesh:
            return False
        held = dict(submesh.fixed)
        return all(held.get(axis, at) == at for axis, at in own.fixed)

    def computes(self) -> Iterator[Compute]:
        """The functions that the role runs, in order."""
        return (a for a in self.actions if isinstance(a, Compute))


class Kernels(Enum):
    """How operators run between communication: one kernel each; in kernels that torch.compile makes of runs of them; or
    in kernels that a framework such as Megatron-LM has of its own, also across communication, which are simulated
    only."""

    EAGER = "eager"
    COMPILED = "compiled"
    FUSED = "fused"


class Members(dict[Submesh, tuple[int, ...]]):
    """By submesh, the numbers of the roles on its devices; found at the first look-up."""

    def __init__(self, roles: Sequence[Role]) -> None:
        super().__init__()
        self.roles = roles
        self._ends: dict[tuple[int, bool], tuple[tuple[int, ...], tuple[int, ...]]] = {}

    def __missing__(self, submesh: Submesh) -> tuple[int, ...]:
        self[submesh] = found = tuple(k for k, role in enumerate(self.roles) if role.is_in(submesh))
        return found

    def ends(self, message: Message, gradient: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The roles that send a message, or its gradient, and those that receive it."""
        key = message.number, gradient
        if key not in self._ends:
            source, target = message.ends(gradient)
            self._ends[key] = self[source], self[target]
        return self._ends[key]

    def end(self, role: int, message: Message, gradient: bool) -> End | None:
        """The end of a message, or of its gradient, at which a role is; None if it takes no part."""
        sources, targets = self.ends(message, gradient)
        if role in sources:
            return End.BOTH if role in targets else End.SEND
        return End.RECEIVE if role in targets else None


class Program(Record):
    """A compiled plan for a model. `stated` are the statements of the plan that gave an action its place.

    If `trains` is false, it has no gradients and no update. Its parameters may then be those of the program that trains
    the same weights, and include some that it does not read. So may those of one of several losses: `unreached` are the
    weights that other losses train, and whose gradients of this one are zero; its update leaves them as they are.
    `kernels` says how operators run, never what they compute.
    """

    plan: Plan
    functions: tuple[Function, ...]
    prologues: tuple[Prologue, ...]
    messages: tuple[Message, ...]
    params: tuple[Param, ...]
    flats: tuple[FlatParam, ...]
    roles: tuple[Role, ...]
    losses: tuple[Loss, ...]
    stated: dict[Compute, tuple[Span, ...]] = field(default_factory=dict)
    results: tuple[Result, ...] = ()
    trains: bool = True
    unreached: frozenset[str] = frozenset()
    kernels: Kernels = Kernels.EAGER

    @property
    def graph(self) -> Graph:
        """The model."""
        return self.plan.graph

    def params_of(self, role: Role) -> tuple[Param, ...]:
        """The weights and buffers of a role's devices."""
        return on_devices(role, self.params)

    def flats_of(self, role: Role) -> tuple[FlatParam, ...]:
        """The flat parameters of a role's devices."""
        return on_devices(role, self.flats)

    def functions_of(self, role: Role) -> tuple[Function, ...]:
        """The functions that a role runs, in the order of their numbers."""
        return tuple(self.functions[n] for n in sorted({task.function for task in role.computes()}))

    def prologues_of(self, role: Role) -> tuple[Prologue, ...]:
        """The prologues that a role's devices run."""
        return on_devices(role, self.prologues)


Placed = TypeVar("Placed", Param, FlatParam, Prologue)


def on_devices(role: Role, things: Sequence[Placed]) -> tuple[Placed, ...]:
    """The things on a role's devices: fast for thousands of them on few submeshes."""
    here = {submesh for submesh in {thing.submesh for thing in things} if role.is_in(submesh)}
    return tuple([thing for thing in things if thing.submesh in here])
