"""The function of a block: calls of its layers' functions, and its other operators in line."""

from dataclasses import replace

from ssdsl.codegen.body import Body
from ssdsl.codegen.in_place import in_place
from ssdsl.codegen.quote import quoted
from ssdsl.codegen.scope import Scope
from ssdsl.codegen.segments import Segment, layer_word, segments
from ssdsl.lower.schedule import Block, Conversion
from ssdsl.model.graph import Operator


def block_text(block: Block, scope: Scope) -> str:
    """The text of a block's function; its layers' functions are added to the scope."""
    before = scope.halves(block).before
    block = replace(block, units={n: u for n, u in block.units.items() if n not in before})
    parts = segments(block, scope.schedule.graph, scope.layers)
    parameters = [*(i.value for i in block.inputs), *prepared_names(block, scope)]
    changing = in_place(block, scope.schedule.graph)
    body = scope.body(block, "", changing)
    body.outside = {v: body.names.name(f"in {v}", v) for v in parameters}
    readers = _readers(block, parts)
    for number, segment in enumerate(parts):
        kept = frozenset(v for item in segment.items for v in _makes(item) if readers.get(v, set()) - {number})
        if segment.layer or segment.unit is not None:
            _call(block, scope, body, segment, kept)
        else:
            _write(block, body, segment, kept)
    outputs = "".join(f"{body.output(o.name)}, " for o in block.outputs).removesuffix(" ")
    lines = [
        f"def {block.name}({', '.join([*body.outside.values(), 'weights', *(t.name for t in block.time)])}):",
        f'    """{_about(block, scope)}"""',
        *(f"    n_{t.name} = {t.sizes}[{t.name}]" for t in block.time if t.sizes),
        "    with weights.under() as w:",
        *(f"        {line}" for line in body.lines),
        f"        return ({outputs})",
    ]
    return "\n".join(lines)


def prepared_names(block: Block, scope: Scope) -> list[str]:
    """Inputs, constants and data that a block reads, under their prepared names."""
    made = {v for p in scope.schedule.prepared if p.submesh == block.submesh for v in p.results}
    sources = [c.value for c in block.conversions] + [r for reads in block.reads.values() for r in reads]
    inputs = {i.value for i in block.inputs}
    return list(dict.fromkeys(s for s in sources if s in made and s not in inputs))


def _about(block: Block, scope: Scope) -> str:
    inside = set(block.operators)
    paths = [o.path for o in scope.schedule.graph.operators if o.name in inside]
    named = [p for p in paths if p] or ["the loss"]
    between = named[0] if named[0] == named[-1] else f"{named[0]} ... {named[-1]}"
    return f"{between}: {len(paths)} operator{'s' if len(paths) > 1 else ''}."


def _readers(block: Block, parts: list[Segment]) -> dict[str, set[int]]:
    """For every value, the numbers of the segments that read it; -1 for what leaves the block."""
    readers: dict[str, set[int]] = {o.name: {-1} for o in block.outputs}
    for number, part in enumerate(parts):
        for item in part.items:
            for value in _reads(block, item):
                readers.setdefault(value, set()).add(number)
    return readers


def _write(block: Block, body: Body, segment: Segment, kept: frozenset[str]) -> None:
    used = kept | {v for item in segment.items for v in _reads(block, item)}
    for item in segment.items:
        body.add(item, _reads(block, item), used)


def _call(block: Block, scope: Scope, outer: Body, segment: Segment, kept: frozenset[str]) -> None:
    """Writes the segment as a function, unless an equal one exists, and a call of it."""
    body = scope.body(block, segment.layer, outer.in_place)
    _write(block, body, segment, kept)
    values = [v for v in body.made if v in kept]
    time = [t.name for t in block.time] + [f"n_{t.name}" for t in block.time if t.sizes]
    results = ", ".join(body.made[v] for v in values) or "()"
    lines = [
        f"({', '.join([*body.outside.values(), 'weights', 'prefix', *time])}):",
        "    with weights.under(prefix) as w:",
        *(f"        {line}" for line in body.lines),
        f"        return {results}",
    ]
    text = "\n".join(lines)
    if text not in scope.functions:
        scope.functions[text] = scope.names.unused(layer_word(segment.layer))
    function = scope.functions[text]
    arguments = [*(outer.read(v) for v in body.outside), "weights", quoted(segment.layer), *time]
    recomputed = segment.unit is not None and block.has_backward
    again = "checkpoint_halves" if block.halves else "checkpoint"
    call = f"{again}({', '.join([function, *arguments])})" if recomputed else f"{function}({', '.join(arguments)})"
    targets = [outer.make(v, "y") for v in values]
    outer.lines.append(f"{', '.join(targets)} = {call}" if targets else call)


def _makes(item: Operator | Conversion) -> list[str]:
    return [item.result] if isinstance(item, Conversion) else [o.value for o in item.outputs]


def _reads(block: Block, item: Operator | Conversion) -> tuple[str, ...]:
    return (item.value,) if isinstance(item, Conversion) else block.reads[item.name]
