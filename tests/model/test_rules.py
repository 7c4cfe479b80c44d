"""Every rule: an operator split at random computes, forward and backward, what the unsplit operator computes."""

import functools
import random
import re
from collections.abc import Iterator

import pytest
import torch

from ssdsl.ir.function import Split
from ssdsl.model.graph import Graph, Operator, Stage
from ssdsl.model.ops.op import regroup
from ssdsl.model.ops.rows import ROWS
from ssdsl.runtime.random.single_device import Draws
from tests.captured import captured_family
from tests.model.parts import Result, Values, call, evaluate, evaluate_parts, outside, reads, run_graph, split
from tests.model.rule_cases import CASES, FAMILIES

INPUT = {"x": torch.zeros(())}
SAMPLES = 2  # splits by several dimensions at once, per operator
UNDEFINED = {"empty_like"}  # whose results are whatever was in memory
# as many results are defined; others are notes for its own backward
SCRATCH = {"_embedding_bag": 1, "_linalg_det": 1, "_linalg_slogdet": 2, "_linalg_solve_ex": 1}


@functools.cache
def captured(family: str) -> tuple[Graph, Values, torch.nn.Module]:
    """The graph of a family, all its values, and the module as it was before."""
    module, graph = captured_family(family)
    return graph, run_graph(graph, outside(graph, module, INPUT)), module


@pytest.mark.thinned(6)
@pytest.mark.parametrize("family", CASES)
def test_graph_computes_what_the_module_computes(family: str) -> None:
    graph, values, module = captured(family)
    weights = dict(module.named_parameters())
    with Draws(0, 0):
        expected = module(**INPUT)
    torch.testing.assert_close(values[graph.loss], expected, equal_nan=True)
    assert set(weights) <= set(values)
    gradients = torch.autograd.grad(
        values[graph.loss], [values[n] for n in weights], materialize_grads=True, retain_graph=True
    )
    wanted = torch.autograd.grad(expected, list(weights.values()), materialize_grads=True)
    torch.testing.assert_close(
        dict(zip(weights, gradients, strict=True)), dict(zip(weights, wanted, strict=True)), equal_nan=True
    )
    buffers = {n: b for n, b in module.named_buffers() if n in values and n not in graph.updates}
    torch.testing.assert_close({n: values[n] for n in buffers}, buffers)


@pytest.mark.parametrize("family", CASES)
def test_others_than_those_that_ask_take_any_memory(family: str) -> None:
    """Operands whose last axis is the outermost in memory: an operator that does not ask computes the same."""
    graph, values, _ = captured(family)
    for operator in graph.operators:
        if operator.args[0].asks_for_order or operator.kind in UNDEFINED or operator.stage is Stage.CONSTANT:
            continue
        given = [v.detach() for v in reads(operator, values)]
        with torch.no_grad():
            plain, turned = call(operator, given, (), {}), call(operator, list(map(reverse, given)), (), {})
        for number, (a, b) in enumerate(zip(plain, turned, strict=True)):
            if number < SCRATCH.get(operator.kind, number + 1):
                msg = functools.partial("{} of {}: {}".format, number, operator.args[0])
                torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-5, equal_nan=True, msg=msg)


def reverse(x: torch.Tensor) -> torch.Tensor:
    """The tensor with its axes in memory the other way round."""
    axes = tuple(reversed(range(x.dim())))
    return x.permute(axes).clone(memory_format=torch.contiguous_format).permute(axes)


@pytest.mark.thinned(11)
@pytest.mark.parametrize("family", CASES)
def test_parts_compute_what_the_operator_computes(family: str) -> None:
    graph, values, _ = captured(family)
    draw = random.Random(family)
    seen = set()
    for operator in graph.operators:
        alike = (operator.args, operator.kwargs, tuple(values[o.value].shape for o in operator.inputs))
        alike = re.sub(r"Ref\([^)]*\)", "Ref", repr(alike))
        skip = operator.stage is Stage.CONSTANT or operator.kind in UNDEFINED
        if not skip and alike not in seen:
            seen.add(alike)
            check(graph, operator, values, draw)


def check(graph: Graph, operator: Operator, values: Values, draw: random.Random) -> None:
    """Compares an operator with its parts: split by each dimension in space and in time, and by several at random."""
    given = [
        v.detach().requires_grad_(differentiable(graph, o.value, v))
        for o, v in zip(operator.inputs, reads(operator, values), strict=True)
    ]
    defined = SCRATCH.get(operator.kind, len(operator.outputs))
    upstream = [
        torch.randn(values[o.value].shape).to(values[o.value].dtype)
        if graph.values[o.value].differentiable and number < defined
        else None
        for number, o in enumerate(operator.outputs)
    ]
    whole = evaluate(operator, given, upstream)
    flows = [differentiable(graph, o.value, y) for o, y in zip(operator.outputs, whole.outputs, strict=True)]
    assert flows[:defined] == whole.flows[:defined], f"{operator.args[0]}: which outputs have gradients"
    for cuts in splits(operator, draw):
        parts = evaluate_parts(operator, given, upstream, cuts)
        parts.outputs[:], whole.outputs[:] = parts.outputs[:defined], whole.outputs[:defined]
        where = f"{operator.args[0]} of {[list(x.shape) for x in given]}, {operator.args[1:]}, split by {cuts}"
        compare(whole, parts, where)


def differentiable(graph: Graph, value: str, tensor: torch.Tensor) -> bool:
    return graph.values[value].differentiable and (tensor.is_floating_point() or tensor.is_complex())


def splits(operator: Operator, draw: random.Random) -> Iterator[tuple[Split, ...]]:
    free = [d for d, dim in enumerate(operator.dims) if not dim.fixed]
    for d in free:
        for count in divisors(operator.dims[d].size):
            for in_space in (True, False):
                if in_space or not operator.dims[d].combined:
                    yield (split("c", d, operator.dims[d].size // count, count, in_space),)
    windows = [{d, dim.window.of} for d, dim in enumerate(operator.dims) if dim.window is not None]
    for _ in range(SAMPLES if free else 0):
        left = {d: operator.dims[d].size for d in free}
        cuts = []
        for number in range(draw.randint(2, 3)):
            d = draw.choice(free)  # of dimensions that windows join, one is cut, and once
            joined = set[int]().union(*(pair for pair in windows if d in pair))
            again = any(left[e] < operator.dims[e].size for e in joined if e in left)
            if not again and (choices := divisors(left[d])):
                count = draw.choice(choices)
                left[d] //= count
                in_space = operator.dims[d].combined or draw.random() < 0.5
                cuts.append(split(f"c{number}", d, left[d], count, in_space))
        if len(cuts) > 1:
            yield tuple(cuts)


def divisors(size: int) -> list[int]:
    return [n for n in (2, 3) if size % n == 0]


def compare(whole: Result, parts: Result, where: str) -> None:
    for word in ("outputs", "gradients", "after"):
        for number, (a, b) in enumerate(zip(getattr(whole, word), getattr(parts, word), strict=True)):
            assert (a is None) == (b is None), f"{word} {number} of {where}"
            if a is not None:
                within = {torch.float16: 2e-3, torch.bfloat16: 5e-2}.get(a.dtype, 2e-5)
                close = functools.partial(torch.testing.assert_close, rtol=within, atol=within, equal_nan=True)
                close(b, a, msg=functools.partial("{} {} of {}: {}".format, word, number, where))


def test_every_row_is_covered() -> None:
    """Every row but those of views, which all become `reshape`, and of a copy, which plans insert."""
    operators = (o for family in FAMILIES for o in captured(family)[0].operators)
    covered = {o.row.name for o in operators if o.stage is not Stage.CONSTANT}
    needed = {name for name, op in ROWS.items() if op.dims is not regroup and name != "aten::clone"} | {"aten::reshape"}
    assert needed <= covered, f"no family of rule_cases.py calls {sorted(needed - covered)}"


def test_right_sides_of_a_triangular_system_may_be_split() -> None:
    systems = [o for o in captured("matrices")[0].operators if o.kind == "linalg_solve_triangular"]
    sides = {next(d.name for d in o.dims if d.size == size) for o, size in zip(systems, (2, 2, 6), strict=True)}
    assert all(not d.fixed for o in systems for d in o.dims if d.name in sides), sides
