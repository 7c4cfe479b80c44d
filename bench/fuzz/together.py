"""Splits that make sense together: rings, slices in time, blocks of space, experts over the batch, vocabularies; and
one of any dimension that there is."""

from collections.abc import Iterable

from bench.fuzz.drawing import Drawing, Parts, Selection
from ssdsl.model.graph import Operator


def split_together(plan: Drawing) -> bool:
    """Writes the statements of one of these, if the model has such dimensions; whether it did."""
    ways = [way for way in WAYS if way(plan, dry=True)]
    return bool(ways) and plan.draw.choice(ways)(plan, dry=False)


def _everything(plan: Drawing) -> Selection:
    return Selection("model", plan.operators)


def _parts(plan: Drawing, sizes: dict[str, int], axis: str) -> Parts | bool:
    """Equal parts over an axis, or others; False if it has more parts than there is to divide."""
    count, found = plan.axes[axis], set(sizes.values())
    if not found or min(found) < count or count < 2:
        return False
    if len(found) == 1 and (min(found) % count or plan.draw.random() < 0.25):
        return plan.cuts(min(found), count)
    return None if all(size % count == 0 for size in found) else False


def _axes(plan: Drawing) -> list[str]:
    """The axes that have devices, in any order."""
    return plan.draw.sample(found, len(found)) if (found := [a for a, n in plan.axes.items() if n > 1]) else []


def _attention(plan: Drawing, dry: bool) -> bool:
    """Keys and queries by one index, or either alone; heads over another axis, and by it the sequence elsewhere.

    Of an axis that is made of several dimensions (the pixels of an image) one is drawn.
    """
    fused = tuple(o for o in plan.operators if "attention" in o.kind and any(d.combined and d.size > 1 for d in o.dims))
    axes = _axes(plan)
    if dry or not fused or not axes:
        return bool(fused and axes)
    draw, everything, chosen = plan.draw, _everything(plan), plan.draw.choice(fused)
    keys = draw.choice([d.name for d in chosen.dims if d.combined and d.size > 1])
    dim = keys.removesuffix(".keys").removesuffix(".1")
    attention = Selection(f"model.{chosen.kind}", tuple(o for o in fused if o.kind == chosen.kind))
    parts = _parts(plan, plan.sizes(attention, keys), axes[0])
    if parts is False:
        return False
    if draw.random() < 0.4:
        parts = plan.chunks(plan.sizes(attention, keys), axes[0]) or parts
    cuts = [(attention, keys)]
    if keys != dim and all(_fits(parts, n, plan.axes[axes[0]]) for n in plan.sizes(everything, dim).values()):
        cuts.append((draw.choice([everything, everything, attention]), dim))
    for chosen_operators, name in draw.sample(cuts, min(len(cuts), draw.choice([1, 2, 2, 2]))):
        plan.split(chosen_operators, name, {axes[0]: parts})
    if axes[1:] and draw.random() < 0.6:
        _heads(plan, attention, dim, axes[1], isinstance(parts, list))
    return True


def _fits(parts: Parts | bool, size: int, count: int) -> bool:
    """Whether another axis of this size can be cut in the same way."""
    if not isinstance(parts, list):
        return size % count == 0
    if isinstance(parts[0], int):
        return size == sum(n for n in parts if isinstance(n, int))
    return size % sum(len(own) for own in parts if isinstance(own, list)) == 0


def _heads(plan: Drawing, attention: Selection, dim: str, axis: str, is_uneven: bool) -> None:
    """Heads over an axis, over which all other operators may have parts of the sequence."""
    heads = _parts(plan, plan.sizes(attention, "heads"), axis)
    if heads is False:
        return
    plan.split(attention, "heads", {axis: heads})
    others = Selection(f"(model - {attention.text})", tuple(o for o in plan.operators if o not in attention.operators))
    left = {plan.left.get((o, dim), size) for o, size in plan.sizes(others, dim).items()}
    if left and not is_uneven and all(n % plan.axes[axis] == 0 for n in left) and plan.draw.random() < 0.7:
        plan.split(others, dim, {axis: None})


def _one(plan: Drawing, dry: bool) -> bool:
    """Any one dimension of all operators that have it."""
    names = splittable(plan.operators)
    return bool(names) if dry else split_one(plan, plan.draw.choice(names))


def splittable(operators: Iterable[Operator]) -> list[str]:
    """The names of dimensions that can be cut."""
    return sorted({d.name for o in operators for d in o.dims if not d.fixed and d.size > 1})


def split_one(plan: Drawing, name: str) -> bool:
    """Writes a split by one dimension: over an axis in equal parts, others or chunks, or in time; whether it could."""
    draw, everything, axes = plan.draw, _everything(plan), _axes(plan)
    sizes = plan.sizes(everything, name)
    index = draw.choice([*axes[:1], *axes[:1], "n"])
    parts: Parts | bool = False
    if not sizes:
        return False
    if index == "n":
        counts = [n for n in (2, 3) if all(size % n == 0 for size in sizes.values())]
        if counts and draw.random() < 0.6:
            parts = draw.choice(counts)
        elif len(set(sizes.values())) == 1:
            parts = plan.cuts(min(sizes.values()), 2)
    else:
        parts = _parts(plan, sizes, index)
        if draw.random() < 0.4:
            parts = plan.chunks(sizes, index) or parts
    if parts is not False:
        plan.split(everything, name, {index: parts})
    return parts is not False


def _slices(plan: Drawing, dry: bool) -> bool:
    """Slices of the sequence within micro-batches, of equal or other lengths."""
    everything = _everything(plan)
    sizes, samples = (set(plan.sizes(everything, dim).values()) for dim in ("seq", "batch"))
    if dry or len(sizes) != 1 or len(samples) != 1:
        return len(sizes) == 1 and len(samples) == 1
    draw, seq, batch = plan.draw, min(sizes), min(samples)
    micro = [n for n in (2, 2, 3, 4) if batch % n == 0]
    if micro and draw.random() < 0.8:
        plan.split(everything, "batch", {"m": draw.choice(micro)})
    count = draw.choice([n for n in (2, 3, 4) if n <= seq] or [1])
    equal = seq % count == 0 and draw.random() < 0.5
    plan.split(everything, "seq", {"t": count if equal else plan.cuts(seq, count)})
    plan.slices = count
    return True


SPACE = (("seq", "height", "length"), ("hidden", "width"))  # names of one axis of an image in and between its layers


def _space(plan: Drawing, dry: bool) -> bool:
    """Blocks of one axis or of both in the layers that read windows, over devices, perhaps along several axes of the
    mesh together, or as tiles in time."""
    layers = [
        p
        for p in plan.paths()
        if p.count(".") == 1 and any(d.window and d.name.endswith(".window") for o in plan.inside(p) for d in o.dims)
    ]
    axes = _axes(plan)
    if dry or not layers or not axes:
        return bool(layers and axes)
    draw, path = plan.draw, plan.draw.choice([*layers, "h.*"])
    chosen = Selection(f'model["{path}"]', plan.inside(path))
    names = draw.choice([SPACE[:1], SPACE[1:], SPACE, SPACE])
    if axes[1:] and draw.random() < 0.4:
        for dim in draw.choice(names):
            sizes = plan.sizes(chosen, dim)
            outer = _parts(plan, sizes, axes[0])
            if sizes:
                parts: dict[str, Parts] = dict.fromkeys(axes)
                plan.split(
                    chosen, dim, parts if isinstance(outer, bool) else parts | {axes[0]: outer}, " where possible"
                )
        return True
    indices = [*axes, "y", "z"] if draw.random() < 0.3 else axes
    for index, dims in zip(indices, names, strict=False):
        for dim in dims:
            sizes = plan.sizes(chosen, dim)
            if index not in plan.axes:
                if sizes:
                    plan.split(chosen, dim, {index: 2}, " where possible")
                continue
            parts = _parts(plan, sizes, index)
            if parts is not False:
                plan.split(chosen, dim, {index: parts}, " where possible")
    return True


def _experts(plan: Drawing, dry: bool) -> bool:
    """Experts over an axis of their own, or over that of the batch; inner dimensions over another."""
    mixed = tuple(o for o in plan.operators if any(d.name == "experts" for d in o.dims))
    axes = _axes(plan)
    if dry or not mixed or not axes:
        return bool(mixed and axes)
    draw, kinds = plan.draw, sorted({o.kind for o in mixed})
    if draw.random() < 0.6:  # not the router
        kinds = [kind for kind in kinds if kind in ("einsum", "routed_mm", "tanh")]
    text = " | ".join(f"model.{kind}" for kind in kinds)
    experts = Selection(f"({text})", tuple(o for o in plan.operators if o.kind in kinds))
    parts = _parts(plan, plan.sizes(experts, "experts"), axes[0])
    if parts is False:
        return False
    plan.split(experts, "experts", {axes[0]: parts})
    rest = Selection(f"(model - {experts.text})", tuple(o for o in plan.operators if o.kind not in kinds))
    samples = set(plan.sizes(rest, "batch").values())
    if draw.random() < 0.6 and all(n % plan.axes[axes[0]] == 0 for n in samples):
        plan.split(rest, "batch", {axes[0]: None})
    if axes[1:] and draw.random() < 0.5:
        inner = _parts(plan, plan.sizes(experts, "ffn"), axes[1])
        if inner is not False:
            plan.split(experts, "ffn", {axes[1]: inner})
    return True


def _vocabulary(plan: Drawing, dry: bool) -> bool:
    """The vocabulary, from the embedding to the loss, over an axis or in time."""
    everything, axes = _everything(plan), _axes(plan)
    sizes = plan.sizes(everything, "vocab")
    if dry or not sizes or not axes:
        return bool(sizes and axes)
    if plan.draw.random() < 0.15:
        plan.split(everything, "vocab", {"v": 2})
        return True
    parts = _parts(plan, sizes, axes[0])
    if parts is False:
        return False
    plan.split(everything, "vocab", {axes[0]: parts})
    return True


def _uneven(plan: Drawing, dry: bool) -> bool:
    """The batch in unequal parts, within equal ones or in front of them."""
    everything, axes = _everything(plan), _axes(plan)
    samples = set(plan.sizes(everything, "batch").values())
    if dry or len(samples) != 1 or min(samples) < 4 or not axes:
        return len(samples) == 1 and min(samples) >= 4 and bool(axes)
    draw, batch, count = plan.draw, min(samples), plan.axes[axes[0]]
    if batch % count == 0 and batch // count > 1:
        uneven = {"m": plan.cuts(batch // count, min(batch // count, draw.choice([2, 2, 3])))}
        outer: dict[str, Parts] = {axes[0]: None}
        parts = uneven | outer if draw.random() < 0.3 else outer | uneven
        if draw.random() < 0.5:
            plan.split(everything, "batch", parts)
        else:
            for name, given in parts.items():
                plan.split(everything, "batch", {name: given})
        return True
    plan.split(everything, "batch", {axes[0]: plan.cuts(batch, count)})
    return True


WAYS = (_attention, _slices, _space, _experts, _vocabulary, _uneven, _one)
