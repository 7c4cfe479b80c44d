"""Random plans for a model: statements that mostly make sense together, so that most of them compile."""

import math
from dataclasses import dataclass, field
from random import Random

from ssdsl.model.graph import Graph, Operator, Origin, Stage

DEVICES = 8  # at most
DRAWS = ("dropout", "attention_dropout", "bernoulli", "uniform", "normal")


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
    micro: dict[str, int] = field(default_factory=dict)  # indices in time that all operators with a batch have
    taken: dict[tuple[str, str], str] = field(default_factory=dict)  # (operator, index) -> dimension
    left: dict[tuple[str, str], int] = field(default_factory=dict)
    states: list[str] = field(default_factory=lambda: ["weights", "grads", "optimizer"])  # to be cut

    @property
    def operators(self) -> tuple[Operator, ...]:
        return tuple(o for o in self.graph.operators if o.stage is Stage.COMPUTE)

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


def draw_plan(draw: Random, graph: Graph) -> tuple[str, ...]:
    """The statements of a plan."""
    plan = Drawing(draw, graph)
    _devices(plan)
    for _ in range(draw.choice([1, 1, 2, 2, 3, 4])):
        _split(plan)
    _assign(plan)
    if draw.random() < (0.6 if any(o.kind in DRAWS for o in plan.operators) else 0.35):
        _recompute(plan)
    for _ in range(draw.choice([0, 0, 0, 1, 1, 2])):
        _state(plan)
    if draw.random() < 0.5:
        draw.choice([_schedule, _schedule, _clock, _order])(plan)
    return tuple(plan.statements)


def _devices(plan: Drawing) -> None:
    """One mesh, with an axis for stages or without, or several meshes; and what the stages are."""
    draw = plan.draw
    names = draw.sample(["dp", "tp", "cp"], draw.choice([1, 1, 2, 2, 3]))
    plan.axes = {name: draw.choice([1, 2, 2, 2, 3]) for name in names}
    while math.prod(plan.axes.values()) > DEVICES:
        plan.axes[draw.choice(names)] = 1
    style = draw.choice(["plain", "plain", "pipeline", "pipeline", "pipeline", "meshes"])
    if style == "plain":
        plan.meshes = [_mesh("gpus", plan.axes)]
        return
    plan.stages = draw.choice([2, 2, 3])
    while math.prod(plan.axes.values()) * plan.stages > DEVICES:
        plan.axes[draw.choice(names)] = 1
    if style == "meshes":
        for number in range(plan.stages):
            own = dict(plan.axes)
            if number and draw.random() < 0.5:  # of another shape; its axis is an index in time on the other meshes
                own = {"ep": plan.axes.get("ep") or draw.choice([1, 2, 3])}
                plan.axes |= own
            plan.meshes.append(_mesh(f"g{number}", own))
    else:
        where = draw.choice([0, 0, len(names)])
        items = list(plan.axes.items())
        plan.meshes = [_mesh("gpus", dict([*items[:where], ("pp", plan.stages), *items[where:]]))]
    plan.statements += plan.meshes
    plan.meshes = []
    plan.statements.append(_stages(plan))


def _mesh(name: str, axes: dict[str, int]) -> str:
    return f"mesh {name}({', '.join(f'{a} = {n}' for a, n in axes.items())})"


def _stages(plan: Drawing) -> str:
    """`balance`, or top-level modules dealt out at random: then a stage need not be a run of layers."""
    top = [p for p in plan.paths() if p != "h" and p.count(".") <= p.startswith("h.")]
    if plan.draw.random() < 0.6 or len(top) < plan.stages:
        return f"let stage = balance(model, {plan.stages})"
    dealt = {p: s for s, p in enumerate(plan.draw.sample(top, plan.stages))}
    for number, path in enumerate(top):
        dealt.setdefault(path, plan.draw.choice([number * plan.stages // len(top), plan.draw.randrange(plan.stages)]))
    others = [" | ".join(f'model["{p}"]' for p in top if dealt[p] == s) for s in range(1, plan.stages)]
    first = f"model - ({' | '.join(others)})"  # with what belongs to no module
    return f"let stage = [{', '.join([first, *others])}]"


def _split(plan: Drawing) -> None:
    """`split OPS by DIM into ...`, of which each index is new to each operator and divides what is left."""
    if plan.meshes:
        plan.statements += plan.meshes
        plan.meshes = []
    draw = plan.draw
    for _ in range(10):
        chosen = plan.selection()
        dims = {d.name for o in chosen.operators for d in o.dims if not d.fixed and d.size > 1}
        if draw.random() < 0.97:
            dims -= {d.name for o in chosen.operators for d in o.dims if d.fixed}
        if not dims:
            continue
        dim = "batch" if "batch" in dims and draw.random() < 0.5 else draw.choice(sorted(dims))
        # of an operator that has it twice, `batch` is `batch.0`
        sizes = {o.name: d.size for o in chosen.operators for d in o.dims if d.name in (dim, f"{dim}.0")}
        left = {name: plan.left.get((name, dim.removesuffix(".0")), size) for name, size in sizes.items()}
        count = draw.choice([1, 1, 1, 2, 2, 3])
        possible = draw.random() < 0.15 or (chosen.text.startswith("stage") and dim != "batch")
        targets = [t for _ in range(count) if (t := _target(plan, dim.removesuffix(".0"), sizes, left, possible))]
        if targets:
            word = dim if dim.replace(".", "").replace("_", "").isalpha() else f'"{dim}"'
            where = " where possible" if possible else ""
            plan.statements.append(f"split {chosen.text} by {word} into {', '.join(targets)}{where}")
            if dim == "batch" and chosen.text == "model":
                names = [t.split(" = ") for t in targets if " = " in t]
                plan.micro |= {n: c.count(",") + 1 if "[" in c else int(c) for n, c in names}
            return


def _target(plan: Drawing, dim: str, sizes: dict[str, int], left: dict[str, int], possible: bool) -> str:
    """An axis, or an index in time with its parts, that all these operators can take; "" if the one drawn cannot."""
    draw = plan.draw
    name = draw.choice([*plan.axes, *plan.axes, "m", "m", "n", "c"])
    smallest = math.gcd(*left.values())
    statistics = dim == "batch" and any(o.name in sizes and o.kind == "batch_norm" for o in plan.operators)
    if any((o, name) in plan.taken for o in sizes) or (statistics and name not in plan.axes and draw.random() < 0.9):
        return ""
    if name in plan.axes:
        count, text = plan.axes[name], name
    elif draw.random() < 0.35 and len(set(left.values())) == 1 and smallest > 1:
        count, text = smallest, f"{name} = [{', '.join(map(str, _parts(draw, smallest)))}]"
    else:
        count = draw.choice([n for n in (2, 2, 3, 4, 5) if smallest % n == 0] or [1])
        text = f"{name} = {count}"
    if smallest % count and not possible and draw.random() > 0.02:
        return ""
    plan.taken |= {(o, name): dim for o in sizes}
    left |= {o: n // count for o, n in left.items() if n % count == 0}
    plan.left |= {(o, dim): n for o, n in left.items()}
    return text


def _parts(draw: Random, size: int) -> list[int]:
    """Sizes that add up."""
    cuts = sorted(draw.sample(range(1, size), min(size - 1, draw.choice([1, 1, 2]))))
    return [b - a for a, b in zip([0, *cuts], [*cuts, size], strict=True)]


def _assign(plan: Drawing) -> None:
    draw = plan.draw
    if not plan.stages:
        layers = [p for p in plan.paths() if p.count(".") == 1]
        path, axis = draw.choice(layers or [""]), draw.choice(list(plan.axes))
        is_split = any((o.name, axis) in plan.taken for o in plan.inside(path))
        if path and not is_split and draw.random() < 0.2:  # some layers on a part of the devices
            place = f"gpus[{axis} = {draw.randrange(plan.axes[axis])}]"
            plan.statements.append(f'assign model["{path}"] to {place}')
            plan.statements.append(f'assign model - model["{path}"] to gpus')
        else:
            plan.statements.append("assign model to gpus")
        return
    if any(s.startswith("mesh g0") for s in plan.statements):
        plan.statements += [f"assign stage[{s}] to g{s}" for s in range(plan.stages)]
        return
    order = list(range(plan.stages))
    if draw.random() < 0.2:
        draw.shuffle(order)
    places = [f"gpus[pp = {p}]" for p in order]
    if draw.random() < 0.1:
        places[draw.randrange(plan.stages)] = "gpus"  # interlaced: a stage on all devices
    plan.statements += [f"assign stage[{s}] to {place}" for s, place in enumerate(places)]


def _recompute(plan: Drawing) -> None:
    paths = [f'model["{p}"]' for p in plan.paths()]
    stages = [f"stage[{s}]" for s in range(plan.stages)]
    choices = ["model", 'model["h.*"]', 'each("h.*")', plan.draw.choice(paths), *stages, plan.selection().text]
    plan.statements.append(f"recompute {plan.draw.choice(choices)}")


def _state(plan: Drawing) -> None:
    """ZeRO of some weights over some axes."""
    over = plan.draw.sample(list(plan.axes), plan.draw.randint(1, len(plan.axes)))
    state = plan.draw.choice(plan.states)
    plan.states.remove(state)
    chosen = plan.selection()
    weights = {v.name for v in plan.graph.of(Origin.WEIGHT)}
    if any(x.value in weights for o in chosen.operators for x in o.inputs):
        plan.statements.append(f"split {chosen.text}.{state} by row into {', '.join(over)}")


SCHEDULES = ("gpipe", "one_f_one_b", "eager_one_f_one_b", "zb_h1", "zb_h2")


def _schedule(plan: Drawing) -> None:
    if plan.stages and "m" in plan.micro:
        name = plan.draw.choice(SCHEDULES)
        plan.statements += [f"use pipeline: {name}", f"{name}(stage, {plan.micro['m']})"]


def _clock(plan: Drawing) -> None:
    """Tasks of stages or of layers at times that a device can keep: a backward behind its forward."""
    if not plan.micro:
        return
    index, count = plan.draw.choice(sorted(plan.micro.items()))
    items, length = ("stage", plan.stages) if plan.stages else ('each("h.*")', 0)
    length = length or len({o.path.split(".")[1] for o in plan.operators if o.path.startswith("h.")})
    backward = plan.draw.choice([["bwd"], ["bwd"], ["dgrad", "wgrad"]])
    step, later = plan.draw.randint(0, 2 * length + 1), plan.draw.randint(0, 4)
    back = f"{step} * m0 + {2 * length} - s"
    times = {"fwd": f"{step} * m0 + s", "bwd": back, "dgrad": back, "wgrad": f"{back} + {later}"}
    rows = [f"    part[s].{phase}[{index} = m0] at {times[phase]}" for phase in ["fwd", *backward]]
    plan.statements.append(f"let part = {items}")
    head = f"order by clock for s in 0..{max(1, length)}, m0 in 0..{count}:"
    plan.statements.append("\n".join([head, *rows]))


def _order(plan: Drawing) -> None:
    """One arrow between tasks of two selections, mostly one that does not close a circle."""
    draw = plan.draw
    one, other = draw.choice([(".fwd", ".fwd"), (".bwd", ".bwd"), (".fwd", ".bwd"), (".bwd", ".fwd"), ("", "")])
    if draw.random() < 0.3:
        one, other = ".dgrad", ".wgrad"
    at = ["", ""]
    if plan.micro:
        name, count = draw.choice(sorted(plan.micro.items()))
        at = [f"[{name} = {k}]" for k in sorted(draw.choices(range(count), k=2))]
    if draw.random() < 0.02:
        at.reverse()
    first, then = plan.selection(), plan.selection()
    if (one, other) == (".bwd", ".fwd") and at[0] == at[1]:
        return
    if one == other and at[0] == at[1]:  # as the data goes
        if plan.is_behind(first, then) is (one != ".bwd"):
            first, then = then, first
        if not plan.is_behind(*((first, then) if one == ".bwd" else (then, first))):
            return
    plan.statements.append(f"order {first.text}{one}{at[0]} -> {then.text}{other}{at[1]}")
