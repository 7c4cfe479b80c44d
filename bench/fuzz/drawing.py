"""A plan as it grows: its statements, and what it has cut of which operators."""

import itertools
from dataclasses import dataclass, field
from random import Random

from ssdsl.model.graph import Graph, Operator, Stage

# Of an index: how many parts, or as many as the axis has; their sizes; or the chunks of each.
Parts = int | None | list[int] | list[list[int]]


@dataclass(frozen=True, slots=True)
class Selection:
    """Operators as a plan writes them."""

    text: str
    operators: tuple[Operator, ...]


@dataclass(slots=True)
class Drawing:
    """A plan as it grows. `left` is what remains of a dimension of an operator that was split."""

    draw: Random
    graph: Graph
    statements: list[str] = field(default_factory=list)
    axes: dict[str, int] = field(default_factory=dict)  # which operators are split over; not those of stages
    meshes: list[str] = field(default_factory=list)
    stages: int = 0
    places: list[int] = field(default_factory=list)  # of each stage, along the axis of stages
    micro: dict[str, int] = field(default_factory=dict)  # indices in time that all operators with a batch have
    slices: int = 0  # of the sequence, within each of the micro-batches `m`
    taken: dict[tuple[str, str], str] = field(default_factory=dict)  # (operator, index) -> dimension
    left: dict[tuple[str, str], int] = field(default_factory=dict)
    states: dict[str, list[str]] = field(default_factory=dict)  # state that is still whole, and axes that may cut it
    portions: dict[str, list[int]] = field(default_factory=dict)  # of the state, along axes

    @property
    def operators(self) -> tuple[Operator, ...]:
        return tuple(o for o in self.graph.operators if o.stage is Stage.COMPUTE)

    def portioned(self, axis: str) -> str:
        """An axis over which state is cut, with the portions of its devices if they have any."""
        return f"{axis} = {self.portions[axis]}" if axis in self.portions else axis

    def paths(self) -> list[str]:
        """Modules, from the outermost: `h.0`, `h.0.up`."""
        names = dict.fromkeys(o.path.partition("#")[0] for o in self.operators if o.path)
        return list(dict.fromkeys(".".join(n.split(".")[: k + 1]) for n in names for k in range(n.count(".") + 1)))

    def inside(self, path: str) -> tuple[Operator, ...]:
        """The operators in a module, or in all of `h.*`."""
        return tuple(o for o in self.operators if f"{o.path}.".startswith(f"{path.removesuffix('.*')}."))

    def is_behind(self, late: Selection, early: Selection) -> bool:
        """Whether all operators of one selection come behind those of another."""
        if late.text.startswith("stage") and early.text.startswith("stage"):
            return late.text > early.text
        where = {o.name: n for n, o in enumerate(self.operators)}
        first, last = ([where[o.name] for o in x.operators] for x in (late, early))
        return bool(first and last) and min(first) > max(last)

    def selection(self) -> Selection:
        """Some operators: mostly all, else a stage, modules, a kind, or what remains without them."""
        everything = Selection("model", self.operators)
        match self.draw.choice(["model"] * 6 + ["stage", "path", "path", "kind", "rest"]):
            case "stage" if self.stages:
                number = self.draw.randrange(self.stages)
                return Selection(f"stage[{number}]", self.operators)
            case "path" | "rest" as word:
                path = self.draw.choice([*self.paths(), "h.*"])
                inside = self.inside(path)
                if word == "path":
                    return Selection(f'model["{path}"]', inside)
                return Selection(f'(model - model["{path}"])', tuple(o for o in self.operators if o not in inside))
            case "kind":
                kind = self.draw.choice(self.operators).kind
                return Selection(f"model.{kind}", tuple(o for o in self.operators if o.kind == kind))
        return everything

    def sizes(self, chosen: Selection, dim: str) -> dict[str, int]:
        """The size of the dimension in each operator that has it; in one that has it twice, that of `dim.0`."""
        return {o.name: d.size for o in chosen.operators for d in o.dims if d.name in (dim, f"{dim}.0")}

    def split(self, chosen: Selection, dim: str, parts: dict[str, Parts], where: str = "") -> None:
        """Writes `split ... into ...`."""
        targets = [_target(name, given) for name, given in parts.items()]
        word = dim if dim.replace(".", "").replace("_", "").isalpha() else f'"{dim}"'
        self.statements.append(f"split {chosen.text} by {word} into {', '.join(targets)}{where}")
        sizes = self.sizes(chosen, dim)
        dim = dim.removesuffix(".0")
        for name, given in parts.items():
            count = len(given) if isinstance(given, list) else self.axes[name] if given is None else given
            self.taken |= {(o, name): dim for o in sizes}
            left = {o: self.left.get((o, dim), size) for o, size in sizes.items()}
            self.left |= {(o, dim): left_of(n, given, count) for o, n in left.items()}
            if dim == "batch" and chosen.text == "model" and given is not None and name not in self.axes:
                self.micro[name] = count

    def cuts(self, size: int, count: int) -> list[int]:
        """As many sizes that add up."""
        places = sorted(self.draw.sample(range(1, size), count - 1))
        return [b - a for a, b in zip([0, *places], [*places, size], strict=True)]

    def chunks(self, sizes: dict[str, int], axis: str) -> list[list[int]] | None:
        """Some of equal chunks for each part, zig-zag or in any order; None where they do not divide the sizes."""
        parts, each = self.axes[axis], self.draw.choice([2, 2, 3])
        count = parts * each
        if any(size % count for size in sizes.values()):
            return None
        if each == 2 and self.draw.random() < 0.5:
            return [[k, count - 1 - k] for k in range(parts)]
        numbers = self.draw.sample(range(count), count)
        cuts = [0, *sorted(self.draw.sample(range(1, count), parts - 1)), count]
        return [numbers[a:b] for a, b in itertools.pairwise(cuts)]


def _target(name: str, given: Parts) -> str:
    if isinstance(given, list):
        return f"{name} = {given}" if isinstance(given[0], int) else f"{name} parts {given}"
    return name if given is None else f"{name} = {given}"


def left_of(size: int, given: Parts, count: int) -> int:
    """What another index may divide: of unequal parts, or of chunks, nothing."""
    if isinstance(given, list):
        return 1
    return size if size % count else size // count
