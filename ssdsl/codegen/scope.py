"""What the functions of one role's file share: its names, groups and layers."""

import itertools
from dataclasses import dataclass, field
from functools import cached_property
from typing import get_args

from ssdsl.codegen.body import RESERVED, Body
from ssdsl.codegen.identifiers import Identifiers
from ssdsl.codegen.sites import Place
from ssdsl.ir.comm import Step
from ssdsl.ir.function import Backward, Function, Instr, Op, Reshard
from ssdsl.ir.param import Zero
from ssdsl.ir.program import Program, Role
from ssdsl.ir.value import Name
from ssdsl.model.layers import module_of
from ssdsl.model.ops.experts import OF_ROWS
from ssdsl.model.ops.random import FUNCTIONS
from ssdsl.model.ops.registry import kernel_functions, modules
from ssdsl.model.storage import Storage

# What a file may import from the runtime beside it.
RUNTIME = (
    *("Input", "Join", "Output", "Part", "block"),
    *(step.kind for step in get_args(Step)),
    *("all_reduce_", "reshard", "rows_to_all"),
    *("first", "first_time", *kernel_functions(), *FUNCTIONS, *OF_ROWS),
    *("checkpoint", "checkpoint_halves", "contiguous", "extend", "group", "halves"),
    *("put", "take", "take_at", "take_sizes"),
)


@dataclass
class Scope:
    """Names of the file; `groups` and `functions` grow as its text is written."""

    program: Program
    role: Role
    names: Identifiers = field(default_factory=lambda: Identifiers((*RUNTIME, *RESERVED, "c")))  # `prepare` has a `c`
    groups: dict[tuple[str, ...], str] = field(default_factory=dict)
    functions: dict[str, str] = field(default_factory=dict)  # text behind the name -> name
    stands: dict[tuple[int, Place], Instr] = field(default_factory=dict)  # by the number of the function, and where

    def __post_init__(self) -> None:
        """Axes name groups and indices in time name arguments: nothing else may be called so."""
        axes = [a for a, _ in self.role.submesh.mesh.axes]
        for size in range(1, len(axes) + 1):
            for chosen in itertools.combinations(axes, size):
                self.names.name("group " + "_".join(chosen), "_".join(chosen))
        times = dict.fromkeys(t.name for f in self.program.functions for t in f.time)
        for word in (w for t in times for w in (t, f"n_{t}") if w not in axes):
            self.names.unused(word)
        for module in modules(self.program.graph.operators):
            self.names.unused(module.partition(".")[0])
        for function in self.blocks:
            self.names.name(f"function {function.number}", function.name)

    def stand(self, function: Function, name: str, layer: str, body: Body) -> None:
        """Notes where the instructions of a body stand: in a Python function that a function calls for a layer."""
        self.stands.update({(function.number, (name, layer, line)): instr for line, instr in body.stands.items()})

    @cached_property
    def places(self) -> dict[str, Storage]:
        """Where the values of the model lie."""
        return self.program.graph.storages

    @property
    def sites(self) -> dict[Place, Instr]:
        """What communicates, and what looks up numbers of the batch, by where it stands."""
        return {place: instr for (_, place), instr in self.stands.items() if self._is_told(instr)}

    def _is_told(self, instr: Instr) -> bool:
        return isinstance(instr, Reshard) or _communicates(instr) or self._looks_up(instr)

    def _looks_up(self, instr: Instr) -> bool:
        """Whether an operator reads whole numbers, which may be larger than it takes: tokens, classes."""
        values = self.program.graph.values
        return isinstance(instr, Op) and any(values[r.value].dtype in WHOLE for r in instr.reads if r.value in values)

    @cached_property
    def blocks(self) -> list[Function]:
        """The functions that the role runs."""
        return [self.program.functions[n] for n in sorted({a.function for a in self.role.computes()})]

    def block(self, number: int) -> str:
        """The Python name of a function of the program."""
        return self.names.name(f"function {number}")

    def group(self, axes: tuple[str, ...]) -> str:
        """The name of the group along some axes, in the order of the mesh."""
        ordered = tuple(a for a, _ in self.role.submesh.mesh.axes if a in axes)
        return self.groups.setdefault(ordered, self.names.name("group " + "_".join(ordered)))

    def body(self, function: Function, layer: str) -> Body:
        """An empty body of a function, in which the weights of a layer go by the rest of their names. What else a
        layer gathers (ZeRO-3) goes by its full name: it is dropped where the layer ends."""
        graph, within = self.program.graph, f"{module_of(layer)}." if layer else ""
        gathered = {
            w
            for flat in self.program.flats
            if flat.zero is Zero.WEIGHTS and flat.submesh == function.submesh
            for w in flat.weights
        }
        weights = {p.var.name for p in function.parameters}
        statistics = {name for operator in graph.operators for name in operator.statistics}

        def weight(name: Name) -> str | None:
            if name not in weights:
                return None
            if name.value in statistics:
                return changed(name.value)
            if name.value.startswith(within):
                return f'w["{name.value.removeprefix(within)}"]'
            return f'w.named("{name.value}")' if name.value in gathered else None

        def changed(buffer: str) -> str:
            inside = buffer.startswith(within)
            return f'w.next["{buffer.removeprefix(within)}"]' if inside else f'weights.under().next["{buffer}"]'

        def unlearned(op: Op) -> bool:
            learning = (graph.values[v.name.value].differentiable for v in op.results)
            return function.backward is not Backward.NONE and not op.learns and any(learning)

        return Body(self.program.graph.by_name, self.group, weight, changed, unlearned, self.names.copy())


WHOLE = ("int64", "int32")


def _communicates(instr: Instr) -> bool:
    return isinstance(instr, Op) and bool(instr.kernel.axes)
