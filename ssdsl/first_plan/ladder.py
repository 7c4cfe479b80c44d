"""Chooses the statements of a first plan, by trying: each that stays is proved.

Rungs, from the best: equal parts of the batch and of layers over the devices; a batch or layers in unequal parts;
stages of layers; fewer devices; the state of training alone; one device.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import islice

from ssdsl.first_plan.draft import Chosen, PlanDraft, Tries, Width
from ssdsl.lang.formatter.spell import spell_dim
from ssdsl.lang.suggest import joined
from ssdsl.model.graph import Graph, Stage
from ssdsl.plan.paths import starred
from ssdsl.record import replace

DATA = Width("dp", "D", 1, "replicas: each has a part of the batch")
LAYERS = Width("tp", "T", 1, "devices among which layers are divided")
KNOWN = ("heads", "ffn", "vocab", "classes", "channels")  # the usual dimensions of tensor parallelism
OTHERS = 4  # further dimensions that are tried
LESS = 0.98  # of the work that is left: a split that divides less is not worth its communication
OPTIMIZER, WEIGHTS = (f"split model.{state} by row into dp" for state in ("optimizer", "weights"))
GOOD = 1.6  # times an equal share of the work: no other rung is tried
NEAR = 1.3  # times the least work of all layouts: one that is as good


def first_draft(tries: Tries, devices: int) -> Chosen:
    """The statements of a first plan for a model, on so many devices or, where nothing can be divided among them, on
    fewer."""
    for count in range(devices, 1, -1):
        of_count = list[Chosen]()
        for rung in (_equal, _unequal, _stages):
            of_count += [chosen] if (chosen := rung(tries, count)) is not None else []
            if of_count and of_count[0].work <= GOOD / count:
                break
        if (best := _first_near(of_count)) is not None:
            return _with_state(tries, best)
    return next((found for n in range(devices, 1, -1) if (found := _state_only(tries, n)) is not None), tries.alone)


def sizes_of(graph: Graph, name: str) -> tuple[int, ...]:
    """The sizes of the dimensions of a name that can be cut, in order."""
    dims = (d for o in graph.operators if o.stage is Stage.COMPUTE for d in o.dims)
    return tuple(sorted({d.size for d in dims if starred(d.name) == name and d.size > 1 and not d.fixed}))


def _layouts(count: int) -> Iterator[tuple[int, int]]:
    """The ways to divide devices between replicas and parts of layers: both, with few parts of layers first.

    >>> [*_layouts(8)]
    [(4, 2), (2, 4), (8, 1), (1, 8)]
    """
    yield from ((count // t, t) for t in range(2, count) if count % t == 0)
    yield from ((count, 1), (1, count))


def _equal(tries: Tries, count: int) -> Chosen | None:
    """Equal parts of the batch, and of layers: the first layout that divides the work about as well as the best."""
    found = [chosen for data, layers in _layouts(count) if (chosen := _layout(tries, data, layers)) is not None]
    return _first_near(found)


def _first_near(found: list[Chosen]) -> Chosen | None:
    """The first whose busiest device has about as little work as with any."""
    least = min((chosen.work for chosen in found), default=1.0)
    return next((chosen for chosen in found if chosen.work <= NEAR * least), None)


def _layout(tries: Tries, data: int, layers: int) -> Chosen | None:
    widths = (
        *((replace(DATA, size=data),) if data > 1 else ()),
        *((replace(LAYERS, size=layers),) if layers > 1 else ()),
    )
    chosen: Chosen | None = Chosen(PlanDraft(widths, about=()), tries.alone.cell)
    assert chosen is not None
    if data > 1:
        chosen = _with_batch(tries, chosen.draft, data)
    return _with_layers(tries, chosen, layers) if chosen is not None and layers > 1 else chosen


def _with_batch(tries: Tries, draft: PlanDraft, parts: int) -> Chosen | None:
    """The draft with parts of the batch; of experts each device has some."""
    batch = "split model by batch into dp"
    experts = ("split model by experts into dp", f"{batch} where possible"), "experts and the batch"
    ways = [experts] if _divides(tries.graph, "experts", parts) else []
    for statements, about in (*ways, ((batch,), "the batch")):
        chosen = tries.of(replace(draft, statements=statements, about=(f"{about} over dp",)))
        if chosen is not None and _is_less(chosen, tries.alone):
            return chosen
    return None


def _is_less(chosen: Chosen, before: Chosen) -> bool:
    """Whether the busiest device has less work; a model without multiplications has none to divide."""
    return not chosen.cell.work or chosen.work < LESS * before.work


def _divides(graph: Graph, name: str, parts: int) -> bool:
    sizes = sizes_of(graph, name)
    return bool(sizes) and all(size % parts == 0 for size in sizes)


def _with_layers(tries: Tries, before: Chosen, parts: int) -> Chosen | None:
    """The draft with every split of layers that is proved and divides more of the work; None if there is none. Unusual
    dimensions are cut only where no usual one is."""
    chosen, cut = before, list[str]()
    for name in _names(tries.graph):
        if (name not in KNOWN and cut) or not any(size % parts == 0 for size in sizes_of(tries.graph, name)):
            continue
        line = f"split model by {spell_dim(name)} into tp"
        lines = (line, f"{line} where possible")
        for text in lines if _divides(tries.graph, name, parts) else lines[1:]:
            found = tries.of(chosen.draft.also(text))
            if found is not None and _is_less(found, chosen):
                chosen = found
                cut.append(name)
                break
    about = (*before.draft.about, f"{joined(cut, 'and')} over tp")
    return replace(chosen, draft=replace(chosen.draft, about=about)) if cut else None


def _names(graph: Graph) -> list[str]:
    """Names of dimensions by which layers may be cut: the usual ones, then those in which most of the work lies."""
    flops: Counter[str] = Counter()
    for operator in graph.operators:
        if operator.stage is Stage.COMPUTE:
            names = {starred(d.name) for d in operator.dims if not d.fixed and d.size > 1 and d.window is None}
            flops.update(dict.fromkeys(sorted(names), operator.flops))
    others = (name for name, _ in flops.most_common() if name not in (*KNOWN, "batch", "experts"))
    return [*(name for name in KNOWN if name in flops), *islice(others, OTHERS)]


def _unequal(tries: Tries, count: int) -> Chosen | None:
    """One dimension in parts whose sizes differ by one: the batch, else one of the layers."""
    for name in ("batch", *_names(tries.graph)):
        sizes = sizes_of(tries.graph, name)
        if len(sizes) != 1 or sizes[0] < count:
            continue
        width = replace(DATA if name == "batch" else LAYERS, size=count)
        parts = [sizes[0] // count + (k < sizes[0] % count) for k in range(count)]
        line = f"split model by {spell_dim(name)} into {width.axis} = {parts}"
        chosen = tries.of(PlanDraft((width,), (line,), about=(f"{name} in unequal parts over {width.axis}",)))
        if chosen is not None and _is_less(chosen, tries.alone):
            return chosen
    return None


def _stages(tries: Tries, count: int) -> Chosen | None:
    """Stages of about equal work, one behind the other."""
    width = Width("pp", "S", count, "stages: each device has some of the layers")
    lines = ("let stage = balance(model, S)",)
    assign = "assign stage[s] to gpus[pp = s] for s in 0..S"
    chosen = tries.of(PlanDraft((width,), lines, assign=assign, about=("stages of layers over pp",)))
    return chosen if chosen is not None and _is_less(chosen, tries.alone) else None


def _state_only(tries: Tries, count: int) -> Chosen | None:
    """The state of training in parts; each device computes all."""
    width = replace(DATA, size=count, about="devices: each has a part of the state of training")
    drafts = (
        PlanDraft((width,), state=(state,), about=("the state of training over dp",)) for state in (WEIGHTS, OPTIMIZER)
    )
    return next((chosen for draft in drafts if (chosen := tries.of(draft)) is not None), None)


def _with_state(tries: Tries, chosen: Chosen) -> Chosen:
    """The draft with the optimizer's state over the replicas, if there are some."""
    if all(width.axis != "dp" for width in chosen.draft.widths):
        return chosen
    return tries.of(replace(chosen.draft, state=(OPTIMIZER,))) or chosen
