"""The table at the end of a role's file: what surrounds each block's function."""

from collections.abc import Iterator

from ssdsl.codegen.block_text import prepared_names
from ssdsl.codegen.quote import quoted, quoted_tuple
from ssdsl.codegen.scope import Scope
from ssdsl.lower.schedule import Block, Combine, Input, Output, Schedule


def block_table(scope: Scope) -> str:
    """`BLOCKS`, by the numbers that the tasks use."""
    return "\n".join(["BLOCKS = {", *(line for b in scope.blocks for line in _entry(b, scope)), "}"])


def input_slot(schedule: Schedule, block: Block, value: str, producer: int) -> str:
    """Where a rank keeps a value for a block: under its name, or apart if it came from other devices."""
    return value if schedule.blocks[producer].submesh == block.submesh else f"{value} for {block.name}"


def _entry(block: Block, scope: Scope) -> Iterator[str]:
    loss = next((n for n, o in enumerate(block.outputs) if o.value == scope.schedule.graph.loss), None)
    counts = ", ".join(f"{quoted(t.name)}: {t.count}" for t in block.time)
    yield f"    {block.number}: Block("
    yield f"        run={block.name},"
    yield f"        time={{{counts}}},"
    yield from _listing("inputs", [_input(scope.schedule, block, i) for i in block.inputs])
    yield f"        prepared={quoted_tuple(prepared_names(block, scope))},"
    yield from _listing("outputs", [_output(o) for o in block.outputs])
    if loss is not None:
        yield f"        loss={loss},"
    if not block.has_backward:
        yield "        backward=False,"
    if block.halves and block.has_backward:
        yield "        halves=True,"
    yield "    ),"


def _input(schedule: Schedule, block: Block, given: Input) -> str:
    producer = schedule.blocks[given.producer]
    parts = [quoted(input_slot(schedule, block, given.value, given.producer))]
    if producer.time:
        parts.append(f"time={quoted_tuple([t.name for t in producer.time])}")
    if given.combines:
        parts.append(f"joins=({', '.join(_join(c, producer) for c in given.combines)},)")
    if not (given.differentiable and producer.has_backward):
        parts.append("learns=False")
    return f"Input({', '.join(parts)})"


def _output(output: Output) -> str:
    return f"Output({quoted(output.name)}{'' if output.differentiable else ', learns=False'})"


def _join(combine: Combine, producer: Block) -> str:
    where = f", dim={combine.cut.dim}, outer={combine.cut.outer}" if combine.cut else ""
    sizes = next(t.sizes for t in producer.time if t.name == combine.index)
    return f"Join({quoted(combine.index)}, {combine.count}{where}{f', sizes={sizes}' if sizes else ''})"


def _listing(name: str, items: list[str]) -> Iterator[str]:
    if not items:
        yield f"        {name}=(),"
    else:
        yield f"        {name}=("
        yield from (f"            {item}," for item in items)
        yield "        ),"
