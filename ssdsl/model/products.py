"""The products of an operator, and their FLOPs in a training step: the one count behind MFU, logs, bounds and prices.

A contraction of n factors is a chain of n - 1 products; each has its result so far on the left and the next factor on
the right. Attention is two of them:

    scores = query @ key.T      left: query, right: key
    result = probs @ value      left: query and key, right: value

Backward has a product of the same size for the left side if something on it has a gradient, and one for the right side:
of y = x @ w, dx = dy @ w.T and dw = x.T @ dy. So a frozen weight saves a product, and so does an input without a
gradient. Causal attention counts half of its scores, and attention in a band those of its band. Elementwise work is
not counted: memory bounds its time.
"""

import math
from collections.abc import Collection

from ssdsl.model.dims.window import Band
from ssdsl.model.graph import Graph, Operator, Stage
from ssdsl.model.ops.reader import argument
from ssdsl.record import Record


class ChainedProduct(Record):
    """A product of a contraction: its FLOPs, and the numbers of the operands on its two sides."""

    flops: float
    left: tuple[int, ...]
    right: int


def products(operator: Operator) -> tuple[ChainedProduct, ...]:
    """The products of an operator's forward, in order; none if it is no contraction."""
    if not operator.row.contraction:
        return ()
    factors = _factors(operator)
    sizes = _chained_sizes(operator, factors)
    whole = operator.flops * seen_share(operator) / max(1, sum(sizes))
    return tuple(ChainedProduct(whole * size, tuple(factors[: n + 1]), factors[n + 1]) for n, size in enumerate(sizes))


def forward_flops(operator: Operator) -> float:
    """The FLOPs of the products of a forward."""
    return sum(product.flops for product in products(operator))


def gradient_flops(operator: Operator, learning: Collection[int]) -> tuple[tuple[int, float], ...]:
    """The FLOPs of the products of a backward, by operand; `learning` are the numbers of operands with a gradient. The
    gradient that several factors share counts for the first of them."""
    found: dict[int, float] = {}
    for product in products(operator):
        left = [n for n in product.left if n in learning]
        for n in (*left[:1], *((product.right,) if product.right in learning else ())):
            found[n] = found.get(n, 0.0) + product.flops
    return tuple(found.items())


def learning_operands(graph: Graph, operator: Operator) -> tuple[int, ...]:
    """The numbers of the operands that have a gradient."""
    if not any(o.value in graph.learning for o in operator.outputs):
        return ()
    return tuple(n for n, o in enumerate(operator.inputs) if o.value in graph.learning)


def step_flops(graph: Graph, *, trains: bool = True) -> dict[str, float]:
    """The FLOPs of a step's products, by the dtype of their results: forward, and backward if it trains. Nothing is
    recomputed. Left out is what is computed before a step, or again for each reader: products of constants, and of
    inputs alone."""
    found: dict[str, float] = {}
    for operator in graph.operators:
        if operator.row.contraction and operator.stage is Stage.COMPUTE and operator.name not in graph.repeated:
            backward = gradient_flops(operator, learning_operands(graph, operator)) if trains else ()
            dtype = graph.values[operator.outputs[0].value].dtype
            flops = forward_flops(operator) + sum(flops for _, flops in backward)
            found[dtype] = found.get(dtype, 0.0) + flops
    return found


def seen_share(operator: Operator) -> float:
    """The share of attention's scores that count: half of them if it is causal, else those in its band, or all."""
    if not operator.target.endswith(("scaled_dot_product_attention", "banded_attention", "attention_dropout")):
        return 1.0
    if argument(operator, "is_causal"):
        return 0.5
    band = argument(operator, "band")
    keys = math.prod(operator.dims[d].size for d in operator.inputs[1].axes[-2])
    return Band(keys, *band).pairs([(0, keys)]) / keys**2 if band else 1.0


def multiply_adds(operator: Operator) -> int:
    """The multiply-adds of a contraction by the sizes of its dimensions: those of all its products."""
    return sum(_chained_sizes(operator, _factors(operator)))


def _factors(operator: Operator) -> list[int]:
    """The numbers of the operands that are multiplied: the first ones that are not added."""
    return [n for n, o in enumerate(operator.inputs) if not o.once][: operator.row.factors]


def _chained_sizes(operator: Operator, factors: list[int]) -> list[int]:
    """The multiply-adds of each product. A dimension that neither a later factor nor the result has is summed as soon
    as no factor is left that has it."""
    dims = [{d for axis in operator.inputs[n].axes for d in axis} for n in factors]
    kept = {d for o in operator.outputs for axis in o.axes for d in axis}
    found, so_far = [], dims[0] if dims else set[int]()
    for n, own in enumerate(dims[1:], 1):
        together = so_far | own
        found.append(math.prod(operator.dims[d].size for d in together))
        so_far = together & kept.union(*dims[n + 1 :])
    return found
