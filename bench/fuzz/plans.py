"""Random plans for a model: statements that mostly make sense together, so that most of them compile."""

import math
from collections.abc import Collection
from random import Random

from bench.fuzz.apart import draw_apart
from bench.fuzz.drawing import Drawing, Parts, Selection, left_of
from bench.fuzz.together import split_one, split_together
from ssdsl.model.graph import Graph, Origin

DEVICES = 8  # at most
APART = 0.2  # of plans without a dimension that they are to cut
DRAWS = ("dropout", "attention_dropout", "bernoulli", "uniform", "normal")


def draw_plan(draw: Random, graph: Graph, dim: str = "") -> tuple[str, ...]:
    """The statements of a plan; one that is to cut a dimension does so first."""
    plan = Drawing(draw, graph)
    if not dim and draw.random() < APART and draw_apart(plan):
        return tuple(plan.statements)
    _devices(plan)
    _say_meshes(plan)
    together = split_one(plan, dim) if dim else draw.random() < 0.55 and split_together(plan)
    for _ in range(draw.choice([0, 0, 1, 1, 2] if together else [1, 1, 2, 2, 3, 4])):
        _split(plan)
    _assign(plan)
    if draw.random() < (0.6 if any(o.kind in DRAWS for o in plan.operators) else 0.35):
        _recompute(plan)
    for _ in range(draw.choice([0, 0, 0, 1, 1, 2])):
        _state(plan)
    chosen = plan.selection()
    if plan.states.get("optimizer") is None and draw.random() < 0.12 and _reads_weights(plan, chosen):
        said = any(".optimizer by row" in s for s in plan.statements)
        axes = draw.sample(list(plan.axes), draw.randint(1, len(plan.axes)))
        plan.statements += [] if said else [f"split {chosen.text}.optimizer by matrix into {', '.join(axes)}"]
    chosen = plan.selection()
    if draw.random() < 0.1 and _reads_weights(plan, chosen):
        plan.statements.append(f"assign {chosen.text}.{draw.choice(['optimizer', 'optimizer', 'weights'])} to host")
    if draw.random() < 0.12:
        plan.statements.append(f"assign {plan.selection().text}.activations to host")
    for words, numbers in (("prefetch {}.weights by", [0, 2, 3]), ("bucket {}.grads by", [1, 2])):
        chosen = plan.selection()
        if draw.random() < 0.15 and chosen.text[0].isalpha() and _reads_weights(plan, chosen):
            plan.statements.append(f"{words.format(chosen.text)} {draw.choice(numbers)}")
    if plan.stages and draw.random() < 0.1:
        plan.statements.append(f"prefetch {plan.selection().text} by {draw.choice([0, 1, 3])}")
    if draw.random() < 0.1:
        chosen = draw.choice([plan.selection().text, *{f"model.{o.kind}" for o in plan.operators if o.kind.isalpha()}])
        less = f" - {plan.selection().text}" if draw.random() < 0.3 else ""
        plan.statements += [f"precision {chosen}{less} to bf16"] if chosen[0].isalpha() else []
    if draw.random() < 0.1:
        _compress(plan)
    if plan.slices and draw.random() < 0.8:
        _schedule(plan)
    elif draw.random() < 0.5:
        draw.choice([_schedule, _schedule, _clock, _order])(plan)
    return tuple(plan.statements)


def _compress(plan: Drawing) -> None:
    """`compress OPS by topk(k) along DIM`, or `by int8`."""
    chosen, draw = plan.selection(), plan.draw
    made = ((o, dim) for o in chosen.operators for out in o.outputs for axis in out.axes for dim in axis)
    sizes = {o.dims[dim].name: o.dims[dim].size for o, dim in made}
    if sizes and chosen.text[0].isalpha():
        dim = draw.choice(sorted(sizes))
        how = draw.choice(["int8", f"topk({draw.randint(1, sizes[dim])})"])
        plan.statements.append(f"compress {chosen.text} by {how} along {dim.removesuffix('.0')}")


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
        plan.places = _places(draw, plan.stages)
        plan.stages = len(plan.places)
    plan.statements += plan.meshes
    plan.meshes = []
    plan.statements.append(_stages(plan))


def _places(draw: Random, devices: int) -> list[int]:
    """The place of each stage: mostly one on each, in order or not; or two on each, in turns or there and back."""
    order = list(range(devices))
    match draw.choice(["one"] * 5 + ["turns", "v"]):
        case "turns":
            return order * 2
        case "v":
            return [*order, *reversed(order)]
    if draw.random() < 0.2:
        draw.shuffle(order)
    return order


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
    draw = plan.draw
    for _ in range(10):
        chosen = plan.selection()
        dims = {d.name for o in chosen.operators for d in o.dims if not d.fixed and d.size > 1}
        if draw.random() < 0.97:
            dims -= {d.name for o in chosen.operators for d in o.dims if d.fixed}
        if not dims:
            continue
        dim = "batch" if "batch" in dims and draw.random() < 0.5 else draw.choice(sorted(dims))
        sizes = plan.sizes(chosen, dim)
        possible = draw.random() < 0.15 or (chosen.text.startswith("stage") and dim != "batch")
        count, parts = draw.choice([1, 1, 1, 2, 2, 3]), dict[str, Parts]()
        left = {name: plan.left.get((name, dim.removesuffix(".0")), size) for name, size in sizes.items()}
        for _ in range(count):
            parts |= _target(plan, dim.removesuffix(".0"), sizes, left, possible, parts)
        if parts:
            plan.split(chosen, dim, parts, " where possible" if possible else "")
            return


def _target(
    plan: Drawing, dim: str, sizes: dict[str, int], left: dict[str, int], possible: bool, others: Collection[str]
) -> dict[str, Parts]:
    """An axis or an index in time with its parts, that all these operators can take; nothing if the one drawn cannot.

    `left` is what remains of the dimension in each operator, and becomes less."""
    draw = plan.draw
    name = draw.choice([*plan.axes, *plan.axes, "m", "m", "n", "c"])
    smallest, is_one = math.gcd(*left.values()), len(set(left.values())) == 1
    statistics = dim == "batch" and any(o.name in sizes and o.kind == "batch_norm" for o in plan.operators)
    taken = name in others or any((o, name) in plan.taken for o in sizes)
    if taken or (statistics and name not in plan.axes and draw.random() < 0.9):
        return {}
    given: Parts = None
    if name in plan.axes:
        count = plan.axes[name]
        if 1 < count <= smallest and is_one and draw.random() < (0.6 if smallest % count else 0.15):
            given = plan.cuts(smallest, count)
        elif count > 1 and not others and draw.random() < 0.1:
            given = plan.chunks(left, name)
    elif draw.random() < 0.35 and is_one and smallest > 1:
        given = plan.cuts(smallest, min(smallest, draw.choice([2, 2, 3])))
        count = len(given)
    else:
        given = count = draw.choice([n for n in (2, 2, 3, 4, 5) if smallest % n == 0] or [1])
    if smallest % count and not isinstance(given, list) and not possible and draw.random() > 0.02:
        return {}
    left |= {o: left_of(n, given, count) for o, n in left.items()}
    return {name: given}


def _say_meshes(plan: Drawing) -> None:
    plan.statements += plan.meshes
    plan.meshes = []


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
    places = [f"gpus[pp = {p}]" for p in plan.places]
    if draw.random() < 0.1:
        places[draw.randrange(plan.stages)] = "gpus"  # interlaced: a stage on all devices
    plan.statements += [f"assign stage[{s}] to {place}" for s, place in enumerate(places)]


def _recompute(plan: Drawing) -> None:
    paths = [f'model["{p}"]' for p in plan.paths()]
    stages = [f"stage[{s}]" for s in range(plan.stages)]
    choices = ["model", 'model["h.*"]', plan.draw.choice(paths), *stages, plan.selection().text]
    again = plan.draw.random() < 0.4
    if again:
        plan.statements.append(f"recompute {plan.draw.choice(choices)}.gathers")
        return
    what = plan.draw.choice([*choices, 'each("h.*")'])
    plan.statements.append(f"recompute {what}")
    if plan.draw.random() < 0.35:  # a part of it, or around it
        plan.statements.append(f"recompute {plan.draw.choice([*choices, *paths])}")
    elif plan.draw.random() < 0.5 and what in choices:
        index, count = plan.draw.choice(sorted(plan.micro.items()) or [("", 0)])
        part = f"[{index} = {plan.draw.randrange(count)}]" if index and plan.draw.random() < 0.5 else ""
        later = plan.draw.choice([f"{what}.bwd{part}", f"{what}.bwd{part}", f"{what}.fwd", *stages])
        plan.statements.append(f"order {what}.again{part} -> {later}")


def _state(plan: Drawing) -> None:
    """ZeRO of some weights, over more axes from the weights to the optimizer's state."""
    draw = plan.draw
    if not plan.states:
        axes = draw.sample(list(plan.axes), len(plan.axes))
        cut = sorted(draw.randint(1, len(axes)) for _ in range(3))
        if draw.random() < 0.5:
            cut = [cut[0]] * 3
        plan.states = {state: axes[:n] for state, n in zip(("weights", "grads", "optimizer"), cut, strict=True)}
        plan.portions = {a: [draw.randint(1, 4) for _ in range(plan.axes[a])] for a in axes if draw.random() < 0.3}
    state = draw.choice(list(plan.states))
    over, chosen = plan.states.pop(state), plan.selection()
    if _reads_weights(plan, chosen):
        plan.statements.append(f"split {chosen.text}.{state} by row into {', '.join(map(plan.portioned, over))}")
        if state == "weights" and chosen.text[0].isalpha() and draw.random() < 0.6:
            _keep(plan, chosen, over)


def _keep(plan: Drawing, chosen: Selection, over: list[str]) -> None:
    """Weights that stay once they are gathered: whole, or in coarser parts than they are in between steps."""
    draw = plan.draw
    parts = draw.sample(over, draw.randint(0, len(over) - 1)) if draw.random() < 0.5 else []
    cut = f" by row into {', '.join(parts)}" if parts else ""
    through = draw.choice(["step", *plan.micro])
    plan.statements.append(f"keep {chosen.text}.weights{cut} through {through}{draw.choice(['', ' in backward'])}")


def _reads_weights(plan: Drawing, chosen: Selection) -> bool:
    weights = {v.name for v in plan.graph.of(Origin.WEIGHT)}
    return any(x.value in weights for o in chosen.operators for x in o.inputs)


SCHEDULES = ("gpipe", "one_f_one_b", "eager_one_f_one_b", "zb_h1", "zb_h2")
V_SHAPED = ("zb_v", "dual_pipe_v", "v_half", "v_min")


def _schedule(plan: Drawing) -> None:
    if not plan.stages or "m" not in plan.micro:
        return
    devices = len({*plan.places})
    if plan.slices:
        known = [*SCHEDULES, *["terapipe"] * 9]
    elif len(plan.places) > devices:  # two stages on each
        known = ["interleaved"] if plan.places[-1] else [*V_SHAPED]
    else:
        known = [*SCHEDULES]
    name = plan.draw.choice(known)
    more = {"terapipe": f", {plan.slices}", "interleaved": ", 2"}.get(name, "")
    plan.statements += [f"use pipeline: {name}", f"{name}(stage, {plan.micro['m']}{more})"]


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
