"""Checks parameters: every use adds to the gradient, and the addends are summed, each once, before the update."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import accumulate, chain, pairwise, product
from typing import assert_never

from ssdsl.ir.comm import AllGather, AllReduce, Narrow, ReduceScatter
from ssdsl.ir.function import Function, reads_of, sections_that_gather
from ssdsl.ir.layout import Cut, Submesh
from ssdsl.ir.param import CompletionStep, FlatParam, Param, StateAxes, SumTiedGrads
from ssdsl.ir.value import Axis, Name, Time, Type
from ssdsl.model.graph import Origin
from ssdsl.prove.facts import ProofFacts
from ssdsl.prove.failures import Rule, Wrong
from ssdsl.prove.roles.devices import Share, share
from ssdsl.prove.types.local import Local, covered, elements, of_type
from ssdsl.text.source import Span


def check_gradients(facts: ProofFacts, function: Function, gradients: dict[Name, Local]) -> None:
    """Adds a failure for each gradient of a weight that is not an addend over exactly the axes that its completion
    sums, and over every index in time of the function, whose tasks add up."""
    seen: set[str] = set()
    for parameter in function.parameters:
        name = parameter.var.name
        where, span = f"function `{function.name}`, backward", function.submesh.mesh.span
        if name.value in seen:
            facts.fail(Rule.TWICE, where, name, "one parameter", name, span)
        seen.add(name.value)
        gradient = gradients.get(name)
        param = facts.params.get((name.value, function.submesh))
        if gradient is None or param is None:
            continue
        axes = {c.name for c in gradient.partial if isinstance(c, Axis)}
        if axes != set(param.partial):
            facts.fail(Rule.PARAM, where, name, f"addends over {param.partial}", f"over {sorted(axes)}", span)
        for index in function.time:
            if Time(index.name) not in gradient.partial:
                facts.fail(Rule.COUNTED, where, name, f"one addend for each {index.name}", gradient, span)


def check_params(facts: ProofFacts) -> None:
    """Adds a failure for each parameter or flat parameter that is not as its uses need it."""
    homes: dict[str, list[Param]] = {}
    for param in facts.program.params:
        homes.setdefault(param.weight, []).append(param)
        _check_param(facts, param)
    flats: dict[tuple[str, Submesh], list[FlatParam]] = {}
    for number, flat in enumerate(facts.program.flats):
        if flat.number != number:
            facts.fail(Rule.FLAT, "the flat parameters", "", number, flat.number)
        for weight in flat.weights:
            flats.setdefault((weight, flat.submesh), []).append(flat)
    for weight, submesh in flats:
        if (weight, submesh) not in facts.params:
            facts.fail(Rule.FLAT, "the flat parameters", weight, f"a weight on {submesh}", "none")
    for weight, params in homes.items():
        _check_apart(facts, weight, params)
        for param in params:
            found = flats.get((weight, param.submesh), [])
            if len(found) != (1 if param.trained else 0):
                wanted = "one" if param.trained else "none, as it is not trained"
                facts.fail(Rule.FLAT, f"parameters on {param.submesh}", weight, wanted, len(found), _span(param))
    for flat in facts.program.flats:
        found_params = [facts.params[w, flat.submesh] for w in flat.weights if (w, flat.submesh) in facts.params]
        found_params.sort(key=lambda param: param.weight in facts.program.unreached)  # whose gradients are zero: last
        if found_params and all(map(_fits, found_params)):
            _check_flat(facts, flat, found_params, homes, flats)
            _check_homes(facts, flat)


def _check_homes(facts: ProofFacts, flat: FlatParam) -> None:
    """Adds a failure for each weight that the optimizer is to step on as a whole, and whose elements do not all come to
    one device along each axis over which they lie, or over which the plan gives homes."""
    if not facts.program.trains:
        return
    sizes = dict(flat.submesh.axes)
    said = [(shard.weights, {*shard.axes}) for shard in facts.program.plan.state.matrices]
    if flat.homes and len(flat.homes) != len(flat.weights):
        facts.fail(Rule.HOME, f"flat parameter {flat.number}", "", f"{len(flat.weights)} homes", len(flat.homes))
        return
    homes = flat.homes or (None,) * len(flat.weights)
    for weight, home in zip(flat.weights, homes, strict=True):
        stated = {axis for weights, axes in said if weight in weights for axis in axes}
        if (param := facts.params.get((weight, flat.submesh))) is None or not (stated or home):
            continue
        local = of_type(Type(param.layout), flat.submesh.axes)
        cut = {axis for axis in sizes if local.digit(Axis(axis)) is not None} | {*flat.sharded.optimizer}
        needed = {axis for axis, size in flat.submesh.axes if size > 1 and axis in stated | cut}
        had = dict(zip(home.axes, home.at, strict=False)) if home is not None else {}
        is_place = home is None or (len(had) == len(home.axes) == len(home.at))
        if had.keys() != needed or not is_place or any(not 0 <= at < sizes[axis] for axis, at in had.items()):
            wanted = f"one device along {', '.join(sorted(needed)) or 'no axis'}"
            facts.fail(Rule.HOME, f"flat parameter {flat.number}", weight, wanted, home, _span(param))


def _check_param(facts: ProofFacts, param: Param) -> None:
    where = f"parameters on {param.submesh}"
    value = facts.graph.values.get(param.weight)
    if value is None:
        return  # another program trains it, and this one does not read it
    if value.origin not in (Origin.WEIGHT, Origin.BUFFER):
        facts.fail(Rule.PARAM, where, param.weight, "a weight or buffer", value.origin)
        return
    if facts.params[param.weight, param.submesh] is not param:
        facts.fail(Rule.TWICE, where, param.weight, "one parameter", "two", _span(param))
    is_unreached = param.weight in facts.program.unreached
    if is_unreached and param.weight in facts.learning:
        facts.fail(Rule.PARAM, where, param.weight, "a weight that the loss does not reach", "a gradient", _span(param))
    trained = value.origin is Origin.WEIGHT and (param.weight in facts.learning or is_unreached)
    if not facts.program.trains:
        trained = param.trained  # decided by the program that trains the weights
    if (param.trained, param.dtype, param.shape.axes) != (trained, value.dtype, value.sizes):
        wanted = f"trained: {trained}, {value.dtype}, {value.sizes}"
        had = f"trained: {param.trained}, {param.dtype}, {param.shape.axes}"
        facts.fail(Rule.PARAM, where, param.weight, wanted, had, _span(param))
    try:
        local = of_type(Type(param.layout), param.submesh.axes)
        elements(value.sizes, local)
        sizes = dict(param.submesh.axes)
        if local.partial or any(d.parts != sizes[c.name] for c, d in local.digits):
            raise Wrong(Rule.PARAM, "one part for each device", local)
        for _, digit in local.digits:  # every element has one owner
            counted = [p for runs in digit.at or () for p in sorted(covered(runs))]
            if digit.at is not None and counted != list(range(param.shape.factors[digit.factor])):
                raise Wrong(Rule.PARAM, "parts one behind the other", digit)
        if any(a not in sizes or local.digit(Axis(a)) is not None for a in param.partial):
            raise Wrong(Rule.PARAM, "addends over axes along which it is whole", param.partial)
    except Wrong as wrong:
        facts.fail_with(wrong, where, param.weight, _span(param))


def _fits(param: Param) -> bool:
    """Whether each digit of a layout is a digit of the weight's shape; `_check_param` reports one that is not."""
    factors = param.shape.factors
    return all(
        d.factor < len(factors) and (d.digit.at is not None or factors[d.factor] % d.digit.parts == 0)
        for d in param.layout.shards()
    )


def _check_apart(facts: ProofFacts, weight: str, params: list[Param]) -> None:
    for at, a in enumerate(params):
        for b in params[at + 1 :]:
            if a.submesh != b.submesh and share(a.submesh, b.submesh) is not Share.NONE:
                facts.fail(
                    Rule.PARAM,
                    "the parameters",
                    weight,
                    "homes without common devices",
                    f"{a.submesh}, {b.submesh}",
                    _span(a),
                )


def _check_flat(
    facts: ProofFacts,
    flat: FlatParam,
    params: list[Param],
    homes: dict[str, list[Param]],
    flats: dict[tuple[str, Submesh], list[FlatParam]],
) -> None:
    where, span = f"flat parameter {flat.number} on {flat.submesh}", _span(params[0])
    for param in params:
        is_alike = param.weight in facts.program.unreached or set(param.partial) == set(params[0].partial)
        if param.dtype != flat.dtype or not is_alike:
            facts.fail(
                Rule.FLAT, where, param.weight, (flat.dtype, params[0].partial), (param.dtype, param.partial), span
            )
    sizes = dict(flat.submesh.axes)
    digits = {c.name for p in params for c, _ in of_type(Type(p.layout), p.submesh.axes).digits}
    axes = flat.sharded.optimizer
    if any(a not in sizes or a in digits for a in axes):
        facts.fail(Rule.FLAT, where, "", "state cut over axes along which the weights are whole", axes, span)
    whole = {a: n for a, n in flat.submesh.axes if a not in digits}
    try:
        _check_portions(facts, flat)
        parts, used = _complete(flat, params, whole, homes, flats), sum(p.elements for p in params)
        if flat.elements % parts or not used <= flat.elements < used + math.prod(_total(flat, a) for a in whole):
            facts.fail(Rule.SIZE, where, "", f"{used}, padded to {parts} equal parts", flat.elements, span)
    except Wrong as wrong:
        facts.fail_with(wrong, where, ", ".join(flat.weights[:3]), span)


def _complete(
    flat: FlatParam,
    params: list[Param],
    whole: dict[str, int],
    homes: dict[str, list[Param]],
    flats: dict[tuple[str, Submesh], list[FlatParam]],
) -> int:
    """The number of equal parts of which all parts consist that the completion cuts the gradient into; `whole` are the
    axes along which all devices have the same weights.

    Raises Wrong unless it leads from the addends that backward leaves to the shard that the optimizer needs.
    """
    owed, cut, summed, parts = set(params[0].partial), tuple[str, ...](), False, 1
    for step, wanted in _with_shards(flat):
        if step is None:
            if cut != wanted:
                raise Wrong(Rule.COMPLETION, f"shards over {wanted}", f"over {cut}")
            continue
        before = _most(flat, cut)
        match step:
            case AllReduce():
                if not step.axes or len(set(step.axes)) != len(step.axes) or not owed.issuperset(step.axes):
                    raise Wrong(Rule.COMPLETION, f"a sum over some of {sorted(owed)}", f"all_reduce over {step.axes}")
                owed -= set(step.axes)
            case ReduceScatter():
                cut = _cut_further(whole, cut, step.axes)
                if not owed.issuperset(step.axes):
                    raise Wrong(
                        Rule.COMPLETION, f"a sum over some of {sorted(owed)}", f"reduce_scatter over {step.axes}"
                    )
                owed -= set(step.axes)
            case Narrow():
                cut = _cut_further(whole, cut, step.axes)
                if owed.intersection(step.axes):
                    raise Wrong(Rule.COMPLETION, f"the same gradient over {step.axes}", f"owed over {sorted(owed)}")
            case AllGather():
                if not step.axes or cut[-len(step.axes) :] != step.axes:
                    raise Wrong(Rule.COMPLETION, f"a gather of parts that were cut last, of {cut}", step.axes)
                cut = cut[: -len(step.axes)]
            case SumTiedGrads():
                _check_tied(flat, step, homes, flats)
                if step not in flat.completion.once or owed or summed or cut != flat.sharded.optimizer:
                    raise Wrong(
                        Rule.COMPLETION,
                        f"first the sums over {sorted(owed)}, of shards over {flat.sharded.optimizer}, then all homes'",
                        f"{type(step).__name__} of shards over {cut}",
                    )
                summed = True
            case _:
                assert_never(step)
        parts = math.lcm(parts, math.prod(_total(flat, a) for a in cut))
        if not isinstance(step, SumTiedGrads):
            _check_payload(flat, step, before, _most(flat, cut))
    tied = len(homes[params[0].weight]) > 1
    if owed or summed is not tied:
        raise Wrong(Rule.COMPLETION, f"nothing owed, summed over homes: {tied}", f"owed {sorted(owed)}, {summed}")
    return parts


def _check_payload(
    flat: FlatParam, step: AllReduce | ReduceScatter | Narrow | AllGather, before: int, after: int
) -> None:
    """Raises Wrong unless a step works on the flat gradient as it is before it, of so many elements on the device that
    has most, and cuts or joins parts of it that are equal, or as large as the portions of the devices say."""
    ways, portions = dict(flat.submesh.axes), dict(flat.sharded.portions)
    ranks = math.prod(ways[axis] for axis in step.axes)
    whole, sent = Cut(0, 1, ranks), before
    if portions.keys() & set(step.axes):
        given = [math.prod(own) for own in product(*(portions.get(a, (1,) * ways[a]) for a in step.axes))]
        ends = [before * done // sum(given) for done in accumulate(given, initial=0)]
        whole = Cut(0, 1, ranks, tuple((run,) for run in pairwise(ends)))
        sent = ranks * max(end - start for start, end in pairwise(ends))  # a part is padded to the largest
    match step:
        case AllReduce():
            wanted: CompletionStep = AllReduce(step.axes, before)
        case AllGather():
            wanted = AllGather(step.axes, after, whole)
        case ReduceScatter():
            wanted = ReduceScatter(step.axes, sent, whole)
        case Narrow():
            wanted = Narrow(step.axes, before, whole)
    if step != wanted:
        raise Wrong(Rule.COMPLETION, str(wanted), str(step))


def _check_portions(facts: ProofFacts, flat: FlatParam) -> None:
    """Raises Wrong unless devices along each axis have the portions of the state that the plan says, one each."""
    sizes, own = dict(flat.submesh.axes), dict(flat.sharded.portions)
    for axis, portions in own.items():
        if axis not in flat.sharded.optimizer or len(portions) != sizes[axis] or min(portions) < 1:
            raise Wrong(Rule.FLAT, "a portion for each device along an axis that cuts the state", (axis, portions))
    for weight in flat.weights if facts.program.trains else ():
        shards = (shard for shard in facts.program.plan.state.shards if weight in shard.weights)
        said = {a: found for s in shards for a, found in s.portions if a in flat.sharded.optimizer}
        if said != own:
            raise Wrong(Rule.FLAT, f"the portions {said}", own)


def _total(flat: FlatParam, axis: str) -> int:
    """The sum of the portions of the devices along an axis; each has one if they are equal."""
    portions = dict(flat.sharded.portions)
    return sum(portions[axis]) if axis in portions else dict(flat.submesh.axes)[axis]


def _most(flat: FlatParam, cut: tuple[str, ...]) -> int:
    """The elements of a part over these axes, on the device that has most."""
    portions = dict(flat.sharded.portions)
    largest = math.prod(max(portions[axis]) for axis in cut if axis in portions)
    return flat.elements * largest // math.prod(_total(flat, axis) for axis in cut)


def _with_shards(flat: FlatParam) -> Iterator[tuple[CompletionStep | None, tuple[str, ...]]]:
    """Yields the steps of a completion, and after those of each time, None with the axes of the state's shards."""
    steps = flat.completion
    for found, axes in zip(steps, flat.cuts, strict=True):
        yield from ((step, axes) for step in found)
        yield None, axes


def _cut_further(whole: dict[str, int], cut: tuple[str, ...], axes: tuple[str, ...]) -> tuple[str, ...]:
    """The axes that cut a gradient after one more step. Raises Wrong unless each is one along which all devices have
    the same weights, and cuts once."""
    after = (*cut, *axes)
    if not axes or len(set(after)) != len(after) or not whole.keys() >= set(axes):
        raise Wrong(Rule.COMPLETION, f"parts over other axes of {sorted(whole)} than {cut}", f"over {axes}")
    return after


def _check_tied(
    flat: FlatParam,
    step: SumTiedGrads,
    homes: dict[str, list[Param]],
    flats: dict[tuple[str, Submesh], list[FlatParam]],
) -> None:
    """Raises Wrong unless the step sums all submeshes on which the weights live, each once, and these hold the same
    parts in the same order."""
    for weight in flat.weights:
        params = homes[weight]
        wanted = [p.submesh for p in params]
        if len(step.submeshes) != len(wanted) or set(step.submeshes) != set(wanted):
            raise Wrong(Rule.COMPLETION, [str(s) for s in wanted], [str(s) for s in step.submeshes])
        layouts = {frozenset(of_type(Type(p.layout), p.submesh.axes).digits) for p in params}
        if len(layouts) != 1:
            raise Wrong(Rule.COMPLETION, "the same parts in all homes", [str(p.layout) for p in params])
        others = [f for p in params for f in flats.get((weight, p.submesh), [])]
        if any(_summed_as(f) != _summed_as(flat) for f in others):
            raise Wrong(Rule.COMPLETION, "alike flat parameters in all homes", [f.number for f in others])


def _summed_as(flat: FlatParam) -> tuple[tuple[str, ...], StateAxes, int]:
    """The facts in which homes must agree to sum their gradients: shards element by element, else each weight by
    itself."""
    return flat.weights, flat.sharded, flat.elements if flat.sharded.optimizer else 0


def check_gathers(facts: ProofFacts, function: Function) -> None:
    """Adds a failure for each section that does not gather exactly the flat parameters (ZeRO-3) whose weights it reads.
    Sections without a layer share what one of them has gathered. A value that was made from a weight does not count."""
    flats = {
        w: f for f in facts.program.flats if f.sharded.weights and f.submesh == function.submesh for w in f.weights
    }
    flat_of = {p.var.name: flats[w] for p in function.parameters if (w := p.var.name.value) in flats}
    shared: set[int] = set()
    for section in function.sections:
        apart = section.is_apart
        reads = [r for i in section.body for r in reads_of(i)]
        wanted = {flat_of[r].number for r in reads if r in flat_of}
        wanted -= set() if apart else shared
        if sorted(section.gathers) != sorted(wanted):
            facts.fail(
                Rule.GATHER,
                f"function `{function.name}`, section `{section.layer}`",
                "",
                sorted(wanted),
                sorted(section.gathers),
                function.submesh.mesh.span,
            )
        if not apart:
            shared |= wanted
    _check_ahead(facts, function, flat_of)


def _check_ahead(facts: ProofFacts, function: Function, flat_of: Mapping[Name, FlatParam]) -> None:
    """Adds a failure unless what forward gathers ahead are the gathers of the sections, in order, and backward gathers
    no flat parameter ahead more often than sections read it. Who reads weights that were not gathered ahead gathers
    them then, so an order without some of them is no failure."""
    ahead, place = function.ahead, f"function `{function.name}`"
    gathers = [flat for section in function.sections for flat in section.gathers]
    if ahead.forward and [*chain.from_iterable(ahead.forward)] != gathers:
        facts.fail(Rule.AHEAD, place, "", gathers, ahead.forward, function.submesh.mesh.span)
    reads = ({r for i in section.body for r in reads_of(i)} for section in function.sections)
    readers = Counter(n for names in reads for n in {flat_of[r].number for r in names if r in flat_of})
    again = Counter(chain.from_iterable(ahead.backward))
    if not again <= readers:
        facts.fail(Rule.AHEAD, place, "backward", dict(readers), dict(again), function.submesh.mesh.span)


def check_awaits(facts: ProofFacts, function: Function) -> None:
    """Adds a failure for each section that reads weights which other devices have updated, or starts to gather them
    from the parts that these have, before they have been awaited in the function; and for one that awaits others, or
    weights that have been awaited."""
    flats, there = facts.program.flats, set[int]()
    updated = {f.number: f for f in flats if facts.program.trains and f.sharded.updated}
    here = {n: f for n, f in updated.items() if f.submesh == function.submesh}
    names = {p.var.name.value for p in function.parameters}
    flat_of = {w: f.number for f in here.values() if not f.sharded.weights for w in f.weights if w in names}
    gathered = [number for section in function.sections for number in section.gathers]
    if function.ahead.forward and [*chain.from_iterable(function.ahead.forward)] != gathered:
        return  # that is a failure already
    starts = sections_that_gather(function.sections, function.ahead, lambda number: flats[number].ahead)
    for place, section in enumerate(function.sections):
        reads = (r.value for i in section.body for r in reads_of(i))
        needed = {flat_of[r] for r in reads if r in flat_of}
        needed |= {flat for flat, start in zip(gathered, starts, strict=True) if start == place and flat in here}
        if sorted(section.awaits) != sorted(needed - there):
            where = f"function `{function.name}`, section `{section.layer}`"
            wanted = f"awaits {sorted(needed - there)}"
            facts.fail(Rule.STALE, where, "", wanted, sorted(section.awaits), function.submesh.mesh.span)
        there |= needed


def _span(param: Param) -> Span | None:
    return param.submesh.mesh.span
