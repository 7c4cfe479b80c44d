"""What the functions of one role's file share: its names, groups and layers."""

import itertools
from dataclasses import dataclass, field

from ssdsl.codegen.body import RESERVED, Body
from ssdsl.codegen.identifiers import Identifiers
from ssdsl.codegen.weight_side import Halves, halves_of
from ssdsl.lower.schedule import Block, Role, Schedule
from ssdsl.model.graph import Origin
from ssdsl.model.layers import layer_paths
from ssdsl.model.ops.registry import kernel_functions, modules
from ssdsl.plan.plan import Mesh

# What a file may import from the runtime beside it.
RUNTIME = (
    *("Block", "Input", "Join", "Output"),
    *("all_gather", "all_reduce", "all_reduce_", "all_to_all", "keep_first", "narrow", "reduce_scatter", "reshard"),
    *("first", "first_time", *kernel_functions()),
    *("checkpoint", "checkpoint_halves", "group", "halves", "take", "take_sizes"),
)


@dataclass(slots=True)
class Scope:
    """Names of the file; `groups` and `functions` grow as its text is written."""

    schedule: Schedule
    role: Role
    names: Identifiers = field(default_factory=lambda: Identifiers(RUNTIME + RESERVED))
    groups: dict[tuple[str, ...], str] = field(default_factory=dict)
    functions: dict[str, str] = field(default_factory=dict)  # text behind the name -> name
    layers: tuple[str, ...] = ()
    _halves: dict[int, Halves] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Axes name groups and indices in time name arguments: nothing else may be called so."""
        self.layers = layer_paths(self.schedule.graph)
        axes = [a for a, _ in self.mesh.axes]
        for size in range(1, len(axes) + 1):
            for chosen in itertools.combinations(axes, size):
                self.names.name("group " + "_".join(chosen), "_".join(chosen))
        times = dict.fromkeys(t.name for b in self.schedule.blocks for t in b.time)
        for word in (w for t in times for w in (t, f"n_{t}") if w not in axes):
            self.names.unused(word)
        for module in modules(self.schedule.graph.operators):
            self.names.unused(module.partition(".")[0])

    @property
    def mesh(self) -> Mesh:
        return next(m for m in self.schedule.plan.meshes if m.name == self.role.mesh)

    @property
    def blocks(self) -> list[Block]:
        """The blocks that the role runs."""
        numbers = {t.block for t in self.role.tasks if t.transfer is None}
        return [self.schedule.blocks[n] for n in sorted(numbers)]

    def group(self, axes: tuple[str, ...]) -> str:
        """The name of the group along some axes, in the order of the mesh."""
        ordered = tuple(a for a, _ in self.mesh.axes if a in axes)
        return self.groups.setdefault(ordered, self.names.name("group " + "_".join(ordered)))

    def halves(self, block: Block) -> Halves:
        """What of a block is called in halves."""
        if block.number not in self._halves:
            self._halves[block.number] = halves_of(block, self.schedule.graph)
        return self._halves[block.number]

    def body(self, block: Block, layer: str, in_place: dict[str, tuple[bool, bool]]) -> Body:
        """An empty function body of a block, in which the weights of a layer go by the rest of their names."""
        graph = self.schedule.graph

        def weight(value: str) -> str | None:
            known = graph.values.get(value)
            if known is None or known.origin not in (Origin.WEIGHT, Origin.BUFFER):
                return None
            if layer and value.startswith(layer + "."):
                return f'w["{value[len(layer) + 1 :]}"]'
            return f'w["{value}"]' if not layer else None

        names = self.names.copy()
        updates = {value: buffer for buffer, value in graph.updates.items()}
        apart = self.halves(block)
        return Body(
            self.group,
            lambda o: self.schedule.cuts[o.name],
            block.time,
            weight,
            names,
            updates,
            in_place,
            apart.sides,
            apart.only_weights,
        )
