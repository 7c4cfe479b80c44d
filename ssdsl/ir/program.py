"""The program: all that a training step does on all devices, once for what is symmetric.

A role stands for all devices that run the same code, a function for every device of its submesh, a message for the
sends and receives of all of its devices. So a program's size does not depend on the width of any axis.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from ssdsl.ir.action import Action, Compute
from ssdsl.ir.comm import Message
from ssdsl.ir.function import Function, Prologue
from ssdsl.ir.layout import Submesh
from ssdsl.ir.param import FlatParam, Param
from ssdsl.ir.value import Name
from ssdsl.model.graph import Graph
from ssdsl.plan.plan import Plan
from ssdsl.text.source import Span


@dataclass(frozen=True, slots=True)
class Loss:
    """The reported loss: an output of a function, summed over its parts in time and over `axes` of its submesh."""

    function: int
    name: Name
    axes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """An output that was asked for by name: what a function leaves in a slot, complete on the devices, to the end of
    the step. Over the function's indices in time the parts are joined, or summed, as the type of the value says."""

    name: str
    function: int
    value: Name
    slot: str


@dataclass(frozen=True, slots=True)
class Role:
    """Devices that run the same code, with what they do in a step, in order."""

    name: str
    submesh: Submesh
    actions: tuple[Action, ...]

    def is_in(self, submesh: Submesh) -> bool:
        """Whether these devices lie in a submesh; they do all or none."""
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


@dataclass(frozen=True, slots=True)
class Program:
    """A plan for a model, compiled. `stated` are the statements of the plan that gave an action its place.

    One that does not train (`trains`) has no gradients and no update. Its parameters may be those of the program that
    trains the same weights, and then include some that it does not read.
    """

    plan: Plan
    functions: tuple[Function, ...]
    prologues: tuple[Prologue, ...]
    messages: tuple[Message, ...]
    params: tuple[Param, ...]
    flats: tuple[FlatParam, ...]
    roles: tuple[Role, ...]
    loss: Loss
    stated: dict[Compute, tuple[Span, ...]] = field(default_factory=dict)
    results: tuple[Result, ...] = ()
    trains: bool = True

    @property
    def graph(self) -> Graph:
        """The model."""
        return self.plan.graph

    def params_of(self, role: Role) -> tuple[Param, ...]:
        """The weights and buffers of a role's devices."""
        return tuple(p for p in self.params if role.is_in(p.submesh))

    def flats_of(self, role: Role) -> tuple[FlatParam, ...]:
        """The flat parameters of a role's devices."""
        return tuple(f for f in self.flats if role.is_in(f.submesh))

    def prologues_of(self, role: Role) -> tuple[Prologue, ...]:
        """The prologues that a role's devices run."""
        return tuple(p for p in self.prologues if role.is_in(p.submesh))
