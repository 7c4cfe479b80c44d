"""Whether parts of a compressed result are, to the bit, what one device makes of the whole one; and of its gradient.

A compression is a choice: rounding of what it is given may change what it keeps, so losses and gradients of a plan
that compresses are compared with a wide allowance. Given the single device's numbers, however, nothing is left to
rounding.
"""

import copy
from collections.abc import Iterable, Iterator
from itertools import chain, product
from math import prod

import torch

from ssdsl.ir.function import OpPart, Split
from ssdsl.ir.program import Program
from ssdsl.model.alter.compress import DECODE, ENCODE
from ssdsl.model.alter.run_graph import run_operator, values_of
from ssdsl.model.graph import Graph, Operand, Operator
from ssdsl.model.load.model import Model
from ssdsl.record import replace
from ssdsl.run.errors import CodesDiffer
from ssdsl.runtime.kernels.compression import bytes_of
from ssdsl.runtime.layout.regions import Runs, shared
from ssdsl.runtime.random.single_device import Draws
from ssdsl.text.diagnostic import PlanError

Positions = dict[int, torch.Tensor]  # of a part, along each dimension of an operator that is cut


def unlike_codes(model: Model, graph: Graph, program: Program, seed: int) -> tuple[int, list[str]]:
    """The number of compressing operators of a graph whose parts in a program were compared, and the names of those
    that make other numbers than on one device, of its first batch."""
    model = model.with_numbers()
    module = copy.deepcopy(model.module)
    with Draws(seed, 0, model.generator):
        values = values_of(graph, module, model.batches[0])
    late = program.plan.graph.by_name  # in which an index may have become a dimension
    coded = {o.name: _of_values(late.get(o.name, o), o) for o in graph.operators if o.target in (ENCODE, DECODE)}
    made = [operand.value for o in coded.values() for operand in o.outputs]
    gradients = torch.autograd.grad(values[graph.loss], [values[name] for name in made], allow_unused=True)
    given = {n: torch.zeros_like(values[n]) if g is None else g for n, g in zip(made, gradients, strict=True)}
    cuts: dict[str, set[tuple[Split, ...]]] = {}
    for function in program.functions:
        for part in (i for i in function.body() if isinstance(i, OpPart) and i.operator in coded):
            cuts.setdefault(part.operator, set()).add(tuple(s for s in part.splits if isinstance(s, Split)))
    wrong = [name for name, splits in cuts.items() if not all(_alike(coded[name], values, given, s) for s in splits)]
    return len(cuts), wrong


def check_codes(model: Model, graph: Graph, program: Program, seed: int) -> int:
    """The number of compressing operators whose parts were compared. Raises PlanError if one makes other numbers."""
    count, unlike = unlike_codes(model, graph, program, seed)
    if unlike:
        raise PlanError(CodesDiffer(None, unlike[0], len(unlike), count))
    return count


def _of_values(operator: Operator, of: Operator) -> Operator:
    """The operator with the values of another one: of a copy that others read in its place."""
    (read,), (made,) = operator.inputs, operator.outputs
    inputs, outputs = (replace(read, value=of.inputs[0].value),), (replace(made, value=of.outputs[0].value),)
    return replace(operator, args=of.args, inputs=inputs, outputs=outputs)


def _alike(
    operator: Operator, values: dict[str, torch.Tensor], given: dict[str, torch.Tensor], splits: tuple[Split, ...]
) -> bool:
    """Whether all parts of an operator make of the parts of these values, and of the gradients that are given, what it
    makes of the whole ones."""
    (read,), (made,) = operator.inputs, operator.outputs
    x, y, gradient = values[read.value].detach(), values[made.value].detach(), given[made.value]
    back = _run(operator, read, x, gradient)[1]
    for at in _parts(operator, splits):
        result, found = _run(operator, read, _cut(operator, read, x, at), _cut(operator, made, gradient, at))
        expected = ((result, _cut(operator, made, y, at)), (found, _cut(operator, read, back, at)))
        if not all(torch.equal(bytes_of(a), bytes_of(b)) for a, b in expected):
            return False
    return True


def _run(
    operator: Operator, read: Operand, x: torch.Tensor, gradient: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The result of an operator, and the gradient of what it reads."""
    x = x.clone().requires_grad_()
    (result,) = run_operator(operator, {read.value: x}).values()
    (found,) = torch.autograd.grad(result, x, gradient)
    return result.detach(), found


def _parts(operator: Operator, splits: tuple[Split, ...]) -> Iterator[Positions]:
    sizes = [dim.size for dim in operator.dims]
    for numbers in product(*(range(split.digit.parts) for split in splits)):
        runs: dict[int, Runs] = {dim: ((0, sizes[dim]),) for split in splits for dim in split.dims}
        for split, number in zip(splits, numbers, strict=True):
            for dim in split.dims:
                runs[dim] = shared(runs[dim], split.in_dim(sizes, dim).runs(sizes[dim], number))
        yield {dim: _positions(found) for dim, found in runs.items()}


def _positions(runs: Iterable[tuple[int, int]]) -> torch.Tensor:
    return torch.tensor([position for start, end in runs for position in range(start, end)])


def _cut(operator: Operator, operand: Operand, x: torch.Tensor, at: Positions) -> torch.Tensor:
    """A part of a tensor, whose axes may be made of several dimensions."""
    dims = [*chain.from_iterable(operand.axes)]
    found = x.reshape([operator.dims[dim].size for dim in dims])
    for place, dim in enumerate(dims):
        found = found.index_select(place, at[dim]) if dim in at else found
    left = dict(zip(dims, found.shape, strict=True))
    return found.reshape([prod(left[dim] for dim in axis) for axis in operand.axes]).contiguous()
