"""Checks draws: every random operator has its own key in its step, and the positions of its part in the whole tensor.

The part of the positions that an operator reads follows from its dimensions, as for any operand. This file checks the
operands: axis i of the drawn tensor has the positions 0, 1, ... of that axis of the whole tensor, the sizes are those
of the whole, and the key is one of this step's keys, which no other operator uses. Where a plan names parts, several
operators draw parts of one tensor with its key: then each has a run of the positions, and together they have all, once.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ssdsl.model.graph import Graph, Operand, Operator, Origin, Ref, Stage, refs_in
from ssdsl.model.ops.reader import given_arguments
from ssdsl.prove.facts import ProofFacts
from ssdsl.prove.failures import Rule

PREFIX = "ssdsl::"
KEYS, KEY, POSITIONS, SLICE = "ssdsl::step_keys", "ssdsl::key", "aten::arange", "aten::slice.Tensor"
DRAWN_OF_RESULT = frozenset(  # a number for each element of the result
    PREFIX + word
    for word in "dropout uniform normal log_normal exponential geometric cauchy integers bernoulli".split()
)
# ssdsl's own operators that draw nothing
NO_DRAWS = (
    KEYS,
    KEY,
    *(PREFIX + word for word in "banded_attention routed_mm expert_mm count_rows dispatch combine".split()),
    *(PREFIX + word for word in "linear_scan encode decode".split()),
)
DRAWN_OF_SCORES = "ssdsl::attention_dropout"  # a number for each pair of a query and a key


def check_draws(facts: ProofFacts) -> None:
    """Adds a failure for each random operator of the graph that does not draw as the single device does."""
    graph, drawn = facts.graph, dict[int, list[tuple[Operator, Box]]]()
    for operator in graph.operators:
        if operator.target.startswith(PREFIX) and operator.target not in NO_DRAWS:
            box = [*map(_run(graph), given_arguments(operator)["index"])]
            wrongs = [*_key(operator, graph, box, drawn), *_positions(operator, box)]
            for wanted, got in wrongs:
                facts.fail(Rule.DRAW, f"operator `{operator.name}`", "", wanted, got)
    for number, parts in drawn.items():
        (operator, _), sizes = parts[0], [*given_arguments(parts[0][0])["sizes"]]
        elements = sum(math.prod(end - start for start, end in box) for _, box in parts)
        if elements != math.prod(sizes):
            found = f"{elements} drawn with key {number}"
            facts.fail(Rule.DRAW, f"operator `{operator.name}`", "", f"all elements of {sizes}", found)


Wrongs = Iterator[tuple[object, object]]  # expected, found
Box = Sequence[tuple[int, int]]  # the positions along each axis of a whole tensor: [start, end)
NOWHERE = (0, 0)


def _run(graph: Graph) -> Callable[[Any], tuple[int, int]]:
    """The positions that an operand has: those of an arange from 0, or of a run of one."""

    def run(item: Any) -> tuple[int, int]:
        maker = graph.makers.get(_value(item))
        if maker is not None and maker.target == SLICE and maker.args[2] == 0 and len(maker.args) == 5:
            (first, last), (start, end) = run(maker.args[1]), maker.args[3:]
            return (first + start, first + end) if 0 <= start <= end <= last - first else NOWHERE
        if maker is None or maker.target != POSITIONS or len(maker.args) != 2:
            return NOWHERE
        return 0, maker.args[1]

    return run


def _key(operator: Operator, graph: Graph, box: Box, drawn: dict[int, list[tuple[Operator, Box]]]) -> Wrongs:
    given = given_arguments(operator)
    key = graph.makers.get(_value(given.get("draw_key", given.get("key"))))
    keys = graph.makers.get(_value(key.args[1])) if key is not None and key.target == KEY else None
    if key is None or keys is None or keys.target != KEYS or {key.stage, keys.stage} != {Stage.DATA}:
        yield "a key of the step", _value(given.get("key"))
        return
    number, (_, seed, count) = key.args[2], keys.args
    if graph.values[_value(seed)].origin is not Origin.SEED or not 0 <= number < count:
        yield f"one of {count} keys that follow from the seed and the step", f"key {number} of {_value(seed)}"
    for other, its in drawn.setdefault(number, []):
        if _is_copy(operator, other) and box == its:
            return
        if not _alike(operator, other) or all(a < d and c < b for (a, b), (c, d) in zip(box, its, strict=True)):
            yield "a key of its own", f"key {number}, as `{other.name}`"
            return
    drawn[number].append((operator, box))


def _is_copy(operator: Operator, other: Operator) -> bool:
    """Whether two operators are one call, computed in two places."""
    one, its = (operator.path, operator.source, operator.target), (other.path, other.source, other.target)
    numbers = ({n: v for n, v in given_arguments(o).items() if not refs_in(v)} for o in (operator, other))
    return one == its and next(numbers) == next(numbers)


def _alike(operator: Operator, other: Operator) -> bool:
    """Whether two operators may draw parts of one tensor."""
    one, its = ([*given_arguments(o)["sizes"]] for o in (operator, other))
    return (operator.target, operator.path, one) == (other.target, other.path, its)


def _positions(operator: Operator, box: Box) -> Wrongs:
    given = given_arguments(operator)
    names = [_value(i) for i in given["index"]]
    shapes = [math.prod(operator.dims[d].size for d in axis) for axis in _axes(operator)]
    sizes = list(given["sizes"])
    if len(sizes) != len(shapes) or any(size < own for size, own in zip(sizes, shapes, strict=True)):
        yield f"sizes of the whole, {shapes}", sizes
    operands = operator.inputs[-len(names) :] if names else ()
    if [o.axes for o in operands] != [(axis,) for axis in _axes(operator)]:
        yield "positions along the axes of what is drawn", ", ".join(names)
    for name, size, whole, (start, end) in zip(names, shapes, sizes, box, strict=False):
        if end - start != size or end > whole:
            yield f"positions 0 to {size - 1}", name


def _axes(operator: Operator) -> tuple[tuple[int, ...], ...]:
    """The dimensions in each axis of the drawn tensor."""
    if operator.target == DRAWN_OF_SCORES:
        query, keys = operator.inputs[:2]
        return (*query.axes[:-1], keys.axes[-2])
    return _one(operator.outputs).axes if operator.target in DRAWN_OF_RESULT else ()


def _one(operands: tuple[Operand, ...]) -> Operand:
    (only,) = operands
    return only


def _value(item: Any) -> str:
    return item.value if isinstance(item, Ref) else ""
