"""Checks draws: every random operator has its own key in its step, and the positions of its part in the whole tensor.

The part of the positions that an operator reads follows from its dimensions, as for any operand. This file checks the
operands: axis i of the drawn tensor has the positions 0, 1, ... of that axis of the whole tensor, the sizes are those
of the whole, and the key is one of this step's keys, which no other operator uses.
"""

import math
from collections.abc import Iterator
from typing import Any

from ssdsl.model.graph import Graph, Operand, Operator, Origin, Ref, Stage
from ssdsl.model.ops.reader import given_arguments
from ssdsl.prove.facts import ProofFacts
from ssdsl.prove.failures import Rule

PREFIX = "ssdsl::"
KEYS, KEY, POSITIONS = "ssdsl::step_keys", "ssdsl::key", "aten::arange"
DRAWN_OF_RESULT = frozenset(  # a number for each element of the result
    PREFIX + word
    for word in "dropout uniform normal log_normal exponential geometric cauchy integers bernoulli".split()
)
# ssdsl's own operators that draw nothing
NO_DRAWS = (
    KEYS,
    KEY,
    *(PREFIX + word for word in "banded_attention routed_mm expert_mm count_rows dispatch combine linear_scan".split()),
)
DRAWN_OF_SCORES = "ssdsl::attention_dropout"  # a number for each pair of a query and a key


def check_draws(facts: ProofFacts) -> None:
    """Adds a failure for each random operator of the graph that does not draw as the single device does."""
    graph, taken = facts.graph, dict[int, str]()
    for operator in graph.operators:
        if operator.target.startswith(PREFIX) and operator.target not in NO_DRAWS:
            for wanted, got in (
                *_key(operator, graph, taken),
                *_positions(operator, graph),
            ):
                facts.fail(Rule.DRAW, f"operator `{operator.name}`", "", wanted, got)


Wrongs = Iterator[tuple[object, object]]  # expected, found


def _key(operator: Operator, graph: Graph, taken: dict[int, str]) -> Wrongs:
    given = given_arguments(operator)
    key = graph.makers.get(_value(given.get("draw_key", given.get("key"))))
    keys = graph.makers.get(_value(key.args[1])) if key is not None and key.target == KEY else None
    if key is None or keys is None or keys.target != KEYS or {key.stage, keys.stage} != {Stage.DATA}:
        yield "a key of the step", _value(given.get("key"))
        return
    number, (_, seed, count) = key.args[2], keys.args
    if graph.values[_value(seed)].origin is not Origin.SEED or not 0 <= number < count:
        yield f"one of {count} keys that follow from the seed and the step", f"key {number} of {_value(seed)}"
    if taken.setdefault(number, operator.name) != operator.name:
        yield "a key of its own", f"key {number}, as `{taken[number]}`"


def _positions(operator: Operator, graph: Graph) -> Wrongs:
    given = given_arguments(operator)
    names = [_value(i) for i in given["index"]]
    shapes = [math.prod(operator.dims[d].size for d in axis) for axis in _axes(operator)]
    if list(given["sizes"]) != shapes:
        yield f"sizes of the whole, {shapes}", list(given["sizes"])
    operands = operator.inputs[-len(names) :] if names else ()
    if [o.axes for o in operands] != [(axis,) for axis in _axes(operator)]:
        yield "positions along the axes of what is drawn", ", ".join(names)
    for name, size in zip(names, shapes, strict=False):
        maker = graph.makers.get(name)
        if maker is None or maker.target != POSITIONS or maker.args[1:] != (size,):
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
