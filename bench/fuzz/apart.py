"""Random plans that name parts, share devices, compute operators twice, and spread the readers of a weight."""

import math

from bench.fuzz.drawing import Drawing
from ssdsl.model.graph import Stage


def draw_apart(plan: Drawing) -> bool:
    """Writes the statements of such a plan; nothing for a model without a batch that can be cut."""
    draw = plan.draw
    sizes = {d.size for o in plan.operators for d in o.dims if d.name == "batch" and o.stage is Stage.COMPUTE}
    if not sizes or (size := math.gcd(*sizes)) < 2:
        return False
    draw.choice([_opposite, _opposite, _opposite, _other_cuts, _meshes, _twice])(plan, size)
    return True


def _opposite(plan: Drawing, size: int) -> None:
    """Each run of the batch has an order of stages on devices of its own; perhaps some are recomputed."""
    draw, stages = plan.draw, plan.draw.choice([2, 2, 3])
    data = draw.choice([1, 1, 2])
    plan.axes = {"pp": stages, "dp": data}
    ways = draw.choice([n for n in (2, 2, 3) if n <= size])
    sizes = plan.cuts(size, ways) if size % ways or draw.random() < 0.3 else None
    least = min(sizes) if sizes else size // ways
    inside = [f"m = {n}" for n in (2, 2) if sizes is None and least % n == 0 and draw.random() < 0.6][:1]
    if data > 1 and all(n % data == 0 for n in (sizes or [least // (2 if inside else 1)])):
        inside.append("dp")
    cuts = ", ".join([f"way = {sizes or ways}", *inside])
    plan.statements += [f"mesh gpus(pp = {stages}, dp = {data})", f"split model by batch into {cuts}"]
    plan.statements.append(f"let stage = balance(model, {stages})")
    for way in range(ways):
        order = draw.sample(range(stages), stages) if draw.random() < 0.8 else [draw.randrange(stages)] * stages
        plan.statements += [f"assign stage[{s}][way = {way}] to gpus[pp = {p}]" for s, p in enumerate(order)]
    _more(plan, ways)


def _more(plan: Drawing, ways: int) -> None:
    """Facts of some parts or of all."""
    draw = plan.draw
    way = draw.randrange(ways)
    lines = [
        f"recompute model[way = {way}]",
        f'recompute model["h.*"][way = {way}]',
        "recompute model",
        f"split model[way = {way}] by hidden into dp where possible",
        "split model.optimizer by row into dp",
        "split model.weights by row into dp",
        f"order stage[0].bwd[way = {way}] -> stage[0].fwd[way = {(way + 1) % ways}]",
        "order stage[0].fwd -> stage[1].fwd",
    ]
    plan.statements += draw.sample(lines, draw.choice([0, 1, 1, 2]))


def _other_cuts(plan: Drawing, size: int) -> None:
    """Parts on the same devices, each cut along a dimension of its own."""
    draw = plan.draw
    count = draw.choice([2, 2, 3])
    plan.axes = {"d": draw.choice([2, 2, 3])}
    parts = draw.choice([n for n in (2, 2, 3) if n <= size])
    sizes = plan.cuts(size, parts) if size % parts or draw.random() < 0.4 else parts
    plan.statements += [f"mesh gpus(d = {plan.axes['d']})", f"split model by batch into m = {sizes}"]
    dims = sorted({d.name for o in plan.operators for d in o.dims if not d.fixed and d.name.isalpha() and d.size > 1})
    for part in range(parts):
        if draw.random() < 0.8:
            plan.statements.append(f"split model[m = {part}] by {draw.choice(dims)} into d where possible")
    if draw.random() < 0.3:
        plan.statements.append(f"recompute model[m = {draw.randrange(parts)}]")
    plan.statements.append("assign model to gpus")
    if count > 2:
        plan.statements.append("split model.optimizer by row into d")


def _meshes(plan: Drawing, size: int) -> None:
    """Stages on meshes that share devices."""
    draw = plan.draw
    a, b = draw.choice([(2, 2), (2, 3), (3, 2), (2, 4)])
    inner = [
        f"mesh i0(x = {a * b}) on gpus",
        f"mesh i1(y = {b}) on gpus[a = {draw.randrange(a)}]",
        f"mesh i2(z = {a}) on gpus[b = {draw.randrange(b)}]",
        f"mesh i3(u = {a}, v = {b}) on gpus",
        f"mesh i4(b = 2) on gpus[a = 0, b = {0 if b < 4 else 2}], gpus[a = 0, b = {1 if b < 4 else 3}]",
    ]
    chosen = draw.sample(inner if b % 2 == 0 else inner[:4], draw.choice([1, 2, 3]))
    names = [line.split()[1].partition("(")[0] for line in chosen]
    stages = len(names) + 1
    plan.statements += [f"mesh gpus(a = {a}, b = {b})", *chosen, f"let stage = balance(model, {stages})"]
    places = draw.sample([*names, draw.choice(["gpus", "gpus[a = 0]", "gpus[b = 1]"])], stages)
    plan.statements += [f"assign stage[{s}] to {place}" for s, place in enumerate(places)]
    axes = {"i0": ["x"], "i1": ["y"], "i2": ["z"], "i3": ["u", "v"], "i4": ["b"], "gpus": ["a", "b"]}
    for s, place in enumerate(places):
        for axis in axes.get(place, []):
            dim = draw.choice(["batch", "hidden", "seq"])
            plan.statements.append(f"split stage[{s}] by {dim} into {axis} where possible")
    if draw.random() < 0.5 and size % 2 == 0:
        plan.statements.insert(len(chosen) + 1, "split model by batch into m = 2")


def _twice(plan: Drawing, size: int) -> None:
    """Some modules are computed in both stages."""
    draw = plan.draw
    cuts = "m = 2, dp" if size % 4 == 0 else "m = 2"
    plan.statements += ["mesh gpus(pp = 2, dp = 2)", f"split model by batch into {cuts}"]
    paths = draw.sample(plan.paths(), min(len(plan.paths()), draw.choice([1, 2, 3])))
    shared = " | ".join(f'model["{path}"]' for path in paths)
    plan.statements += [f"let shared = {shared}", "let stage = balance(model, 2)"]
    plan.statements.append("assign shared to gpus[pp = 0], gpus[pp = 1]")
    plan.statements += [f"assign stage[{s}] - shared to gpus[pp = {s}]" for s in range(2)]
