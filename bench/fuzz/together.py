"""Splits that make sense together: rings, slices in time, blocks of space, experts over the batch, vocabularies."""

import itertools

from bench.fuzz.drawing import Drawing, Parts, Selection


def split_together(plan: Drawing) -> bool:
    """Writes the statements of one of these, if the model has such dimensions; whether it did."""
    ways = [way for way in (_attention, _slices, _space, _experts, _vocabulary, _uneven) if way(plan, dry=True)]
    return bool(ways) and plan.draw.choice(ways)(plan, dry=False)


def _dims(plan: Drawing) -> set[str]:
    return {d.name for o in plan.operators for d in o.dims if not d.fixed and d.size > 1}


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


def _chunks(plan: Drawing, sizes: dict[str, int], axis: str) -> list[list[int]] | None:
    """Some of equal chunks for each part, zig-zag or in any order; None where they do not divide the sizes."""
    parts, each = plan.axes[axis], plan.draw.choice([2, 2, 3])
    count = parts * each
    if any(size % count for size in sizes.values()):
        return None
    if each == 2 and plan.draw.random() < 0.5:
        return [[k, count - 1 - k] for k in range(parts)]
    numbers = plan.draw.sample(range(count), count)
    cuts = [0, *sorted(plan.draw.sample(range(1, count), parts - 1)), count]
    return [numbers[a:b] for a, b in itertools.pairwise(cuts)]


def _axes(plan: Drawing) -> list[str]:
    """The axes that have devices, in any order."""
    return plan.draw.sample(found, len(found)) if (found := [a for a, n in plan.axes.items() if n > 1]) else []


def _attention(plan: Drawing, dry: bool) -> bool:
    """Keys and queries by one index, or either alone; heads over another axis, and by it the sequence elsewhere."""
    fused = tuple(o for o in plan.operators if any(d.name == "seq.keys" for d in o.dims))
    axes = _axes(plan)
    if dry or not fused or not axes:
        return bool(fused and axes)
    draw, everything = plan.draw, _everything(plan)
    attention = Selection("model.scaled_dot_product_attention", fused)
    parts = _parts(plan, plan.sizes(everything, "seq"), axes[0])
    if parts is False:
        return False
    if draw.random() < 0.4:
        parts = _chunks(plan, plan.sizes(everything, "seq"), axes[0]) or parts
    cuts = [(draw.choice([everything, everything, attention]), "seq"), (attention, "seq.keys")]
    for chosen, dim in draw.sample(cuts, draw.choice([1, 2, 2, 2])):
        plan.split(chosen, dim, {axes[0]: parts})
    if axes[1:] and draw.random() < 0.6:
        heads = _parts(plan, plan.sizes(attention, "heads"), axes[1])
        if heads is not False:
            plan.split(attention, "heads", {axes[1]: heads})
            rest = tuple(o for o in plan.operators if o not in fused)
            others = Selection(f"(model - {attention.text})", rest)
            left = {plan.left.get((o, "seq"), size) for o, size in plan.sizes(others, "seq").items()}
            if not isinstance(parts, list) and all(n % plan.axes[axes[1]] == 0 for n in left) and draw.random() < 0.7:
                plan.split(others, "seq", {axes[1]: None})
    return True


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
    """Blocks of one axis or of both in the layers that read windows, over devices or as tiles in time."""
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
