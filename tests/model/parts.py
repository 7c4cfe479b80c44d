"""Runs one operator whole, and part by part with the expressions that programs get, in one process."""

import itertools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F

from ssdsl import runtime
from ssdsl.codegen.expressions import constant_expression, expression
from ssdsl.ir.function import OpPart, Split
from ssdsl.ir.value import Axis, Name, Time, Var, local_sizes
from ssdsl.lower.operators.kernels import first_of, kernel_of
from ssdsl.lower.operators.operand_types import operand_shape, operand_types
from ssdsl.model.capture.initial_state import constants_of
from ssdsl.model.dims.window import in_time, needed
from ssdsl.model.graph import Graph, Operand, Operator, Origin, Stage
from ssdsl.model.ops.families.experts import OF_ROWS
from ssdsl.model.ops.families.random import FUNCTIONS
from ssdsl.model.ops.rows import ROWS
from ssdsl.plan.regions import Digit
from ssdsl.runtime.ranks.transport import Works
from ssdsl.runtime.ranks.world import Group, World


def kernel_functions() -> tuple[str, ...]:
    """The runtime's functions that kernels of parts call."""
    kernels = (k for op in ROWS.values() for k in (op.kernel, op.ring) if k is not None)
    calls = [*(k.call for k in kernels), *(op.windows for op in ROWS.values() if op.windows)]
    return tuple(dict.fromkeys(call.partition("(")[0] for call in calls))


KERNELS = {n: getattr(runtime, n) for n in ("Part", "contiguous", "first", "first_time", *kernel_functions(), *OF_ROWS)}
CALLED = {n: getattr(runtime, n) for n in (*FUNCTIONS, "linear_scan", "encode", "decode")}
CODE = {"torch": torch, "F": F, "aten": torch.ops.aten, "device": torch.device("cpu"), **KERNELS, **CALLED}
Values = dict[str, torch.Tensor]
Place = tuple[int, ...]  # the value of each cut's index


def split(index: str, dim: int, stride: int, parts: int, is_axis: bool) -> Split:
    """A split of an operator's dimension along a mesh axis or an index in time."""
    return Split(Axis(index) if is_axis else Time(index), dim, Digit(parts, stride))


def in_space(cut: Split) -> bool:
    return isinstance(cut.coordinate, Axis)


def part_of(operator: Operator, cuts: tuple[Split, ...]) -> OpPart:
    """The instruction of a part, as the lowering writes it."""
    axes = tuple((c.coordinate.name, c.digit.parts) for c in cuts if in_space(c))
    results = []
    for operand in operator.outputs:
        type_, _ = operand_types(operator, cuts, operand, axes, is_output=True)
        sizes = local_sizes(operand_shape(operator, operand), type_, axes)
        results.append(Var(Name(operand.value), type_, None, sizes, "float32"))
    reads = tuple(Name(o.value) for o in operator.inputs)
    kernel, first = kernel_of(operator, cuts, axes), first_of(operator, cuts)
    return OpPart(operator.name, cuts, reads, tuple(results), kernel, first, orders=operator.orders)


def run_graph(graph: Graph, outside: Values) -> Values:
    """All values of a graph, computed by the expressions of its whole operators."""
    values = dict(outside)
    for operator in graph.operators:
        for operand, result in zip(operator.outputs, call(operator, reads(operator, values), (), {}), strict=True):
            values[operand.value] = result
    return values


def reads(operator: Operator, values: Values) -> list[torch.Tensor]:
    if operator.stage is Stage.CONSTANT:  # has no operands: its arguments name what it reads
        return [values[v] for v in refs(operator.args)]
    return [values[o.value] for o in operator.inputs]


def refs(item: Any) -> Iterator[str]:
    if isinstance(item, tuple):
        for part in item:
            yield from refs(part)
    elif hasattr(item, "value"):
        yield item.value


def outside(graph: Graph, module: torch.nn.Module, batch: Values) -> Values:
    """The values that come from outside the graph: inputs, weights and buffers of the module, constants."""
    state = dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers(remove_duplicate=False))
    state = {n: t.detach().clone().requires_grad_(t.requires_grad) for n, t in state.items()}
    named = [n for n, v in graph.values.items() if v.origin is not Origin.OPERATOR]
    state |= {v.name: torch.tensor([0, 0]) for v in graph.of(Origin.SEED)}
    constants = constants_of(graph)
    return {n: batch[n] if n in batch else state[n] if n in state else constants[n] for n in named}


def call(
    operator: Operator, given: Sequence[torch.Tensor], cuts: tuple[Split, ...], local: dict[str, Any]
) -> tuple[torch.Tensor, ...]:
    """The results of an operator's expression."""
    names = [f"x{i}" for i in range(len(given))]
    if operator.stage is Stage.CONSTANT:
        text = constant_expression(operator, names)
    else:
        text = expression(operator, part_of(operator, cuts), names, "_".join)
    result = eval(text, CODE | dict(zip(names, given, strict=True)) | local)
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def indices_of(operator: Operator, operand: Operand, cuts: Sequence[Split], at: Place) -> torch.Tensor:
    """Which elements of an operand, numbered through, a part has; in the part's shape."""
    sizes = {d: dim.size for d, dim in enumerate(operator.dims)}
    shape = [math.prod(sizes[d] for d in axis) for axis in operand.axes]
    found = torch.arange(math.prod(shape)).view(shape)
    for cut, place in zip(cuts, at, strict=True):
        for axis, dims in enumerate(operand.axes):
            if cut.dim in dims:
                outer = math.prod(sizes[d] for d in dims[: dims.index(cut.dim)])
                rest = found.shape[axis] // (outer * cut.digit.parts)
                digits = found.unflatten(axis, (outer, cut.digit.parts, rest))
                found = digits.select(axis + 1, place).flatten(axis, axis + 1)
            for window in (operator.dims[d].window for d in dims):
                # the only cut of this dimension; a tensor that has it, a mask of queries and keys, has all keys
                if window is not None and window.of == cut.dim and not operand.carries(cut.dim):
                    reach = window.shape if in_space(cut) else in_time(window.shape)
                    runs = needed(reach, [(place * cut.digit.stride, (place + 1) * cut.digit.stride)])
                    found = torch.cat([found.narrow(axis, start, end - start) for start, end in runs], axis)
        sizes[cut.dim] //= cut.digit.parts
    return found


@dataclass
class Lockstep:
    """A process group of threads: each waits for the others in every collective."""

    count: int
    parts: list[torch.Tensor] = field(default_factory=list)
    sent: list[tuple[str, int]] = field(default_factory=list)  # the collectives of one thread, and their bytes

    def __post_init__(self) -> None:
        self.barrier = threading.Barrier(self.count, timeout=100)

    def start_all_reduce(self, x: torch.Tensor, group: "Lockstep", merge: str = "sum") -> Works:
        assert group is self
        self.parts.append(x)
        if self.barrier.wait() == 0:
            self.sent.append(("all_reduce", x.numel() * x.element_size()))
        stacked = torch.stack(list(self.parts))
        self.barrier.wait()
        self.parts.clear()
        self.barrier.wait()
        x.copy_(reduce(torch.fmax, stacked) if merge == "max" else stacked.sum(0))  # without NaN, as NCCL
        return Works(())


@dataclass
class Groups:
    """The groups of the indices in space, for each part those that differ from it on these indices only."""

    cuts: Sequence[Split]
    made: dict[tuple[str, Place], Lockstep] = field(default_factory=dict)

    def of(self, at: Place) -> dict[str, Group]:
        space = [c for c in self.cuts if in_space(c)]
        where = dict(zip((c.coordinate.name for c in self.cuts), at, strict=True))
        found = {}
        for r in range(1, len(space) + 1):
            for members in itertools.combinations(space, r):
                name, size, index = (
                    "_".join(c.coordinate.name for c in members),
                    math.prod(c.digit.parts for c in members),
                    0,
                )
                for c in members:
                    index = index * c.digit.parts + where[c.coordinate.name]
                others = tuple(where[c.coordinate.name] for c in self.cuts if c not in members)
                step = self.made.setdefault((name, others), Lockstep(size))
                found[name] = Group(name, tuple(range(size)), index, step, World(step))  # type: ignore[arg-type]
        return found


@dataclass
class Result:
    """The outputs of an operator and, given gradients of the outputs, the gradients of its inputs."""

    outputs: list[torch.Tensor]
    gradients: list[torch.Tensor | None]
    after: list[torch.Tensor]  # the inputs, which a call may change (running statistics)
    flows: list[bool] = field(default_factory=list)  # which outputs have gradients


def evaluate(
    operator: Operator,
    given: Sequence[torch.Tensor],
    upstream: Sequence[torch.Tensor | None],
    cuts: tuple[Split, ...] = (),
    local: dict[str, Any] | None = None,
) -> Result:
    """Forward and backward of an operator, or of one of its parts."""
    leaves = [x.detach().clone().requires_grad_(x.requires_grad) for x in given]
    outputs = call(operator, leaves, cuts, local or {})
    flowing = [(y, g) for y, g in zip(outputs, upstream, strict=True) if g is not None]
    if flowing and any(x.requires_grad for x in leaves):
        torch.autograd.backward(*map(list, zip(*flowing, strict=True)))
    return Result(
        [y.detach() for y in outputs],
        [x.grad for x in leaves],
        [x.detach() for x in leaves],
        [y.requires_grad for y in outputs],
    )


def evaluate_parts(
    operator: Operator,
    given: Sequence[torch.Tensor],
    upstream: Sequence[torch.Tensor | None],
    cuts: tuple[Split, ...],
) -> Result:
    """All parts, put together by the table in docs/design.md. Parts that talk to each other run in threads."""
    groups = Groups(cuts)
    places = list(itertools.product(*(range(c.digit.parts) for c in cuts)))
    results: dict[Place, Any] = {}

    def run(at: Place) -> None:
        inputs = [_take(x, indices_of(operator, o, cuts, at)) for o, x in zip(operator.inputs, given, strict=True)]
        wanted = [_take(g, indices_of(operator, o, cuts, at)) for o, g in zip(operator.outputs, upstream, strict=True)]
        local = dict(zip((c.coordinate.name for c in cuts), at, strict=True)) | groups.of(at)
        try:
            results[at] = evaluate(operator, inputs, wanted, cuts, local)  # type: ignore[arg-type]
        except Exception as error:
            results[at] = error

    if any(operator.dims[c.dim].combined for c in cuts):
        threads = [threading.Thread(target=run, args=(at,)) for at in places]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    else:
        for at in places:
            run(at)
    for result in results.values():
        if isinstance(result, Exception):
            raise result

    def joined(
        operand: Operand, like: torch.Tensor, part: Callable[[Result], Any], copied: list[bool], adds: bool = True
    ) -> Any:
        pieces = [(at, part(results[at])) for at in places]
        given = [(at, piece) for at, piece in pieces if piece is not None]  # no gradient is a gradient of zero
        return _join(operator, operand, cuts, like, given, copied, adds) if given else None

    whole = [in_space(c) and operator.summed(c.dim) for c in cuts]
    return Result(
        [
            joined(o, _shaped(operator, o), lambda r, i=i: r.outputs[i], [operator.dims[c.dim].combined for c in cuts])
            for i, o in enumerate(operator.outputs)
        ],
        [
            joined(o, x, lambda r, i=i: r.gradients[i], [o.once and w for w in whole])
            for i, (o, x) in enumerate(zip(operator.inputs, given, strict=True))
        ],
        [
            joined(o, x, lambda r, i=i: r.after[i], [True] * len(cuts), adds=False)
            for i, (o, x) in enumerate(zip(operator.inputs, given, strict=True))
        ],
    )


def _take(x: torch.Tensor | None, indices: torch.Tensor) -> torch.Tensor | None:
    if x is None:
        return None
    return x.detach().flatten()[indices.flatten()].view(indices.shape).requires_grad_(x.requires_grad)


def _shaped(operator: Operator, operand: Operand) -> torch.Tensor:
    return torch.empty([math.prod(operator.dims[d].size for d in axis) for axis in operand.axes], device="meta")


def _join(
    operator: Operator,
    operand: Operand,
    cuts: tuple[Split, ...],
    like: torch.Tensor,
    pieces: list[tuple[Place, torch.Tensor]],
    copied: list[bool],
    adds: bool,
) -> torch.Tensor:
    """Parts put where they belong; along a cut that the operand lacks, they are added or, if copied, the same. What
    windows share is added too, or it is the same."""
    first = pieces[0][1]
    dtype = torch.int64 if first.dtype is torch.bool else first.dtype
    result = torch.zeros(like.shape, dtype=dtype)
    if not adds:  # what no part reads stays as it was
        result.copy_(like.detach())
    windows = {dim.window.of for d, dim in enumerate(operator.dims) if dim.window is not None and operand.carries(d)}
    skip = [c and not operand.carries(cut.dim) and cut.dim not in windows for c, cut in zip(copied, cuts, strict=True)]
    for at, piece in pieces:
        where = indices_of(operator, operand, cuts, at)
        assert piece.shape == where.shape, (
            f"part {at} of `{operand.value}` is {list(piece.shape)}, not {list(where.shape)}"
        )
        if not any(p and s for p, s in zip(at, skip, strict=True)):
            place = result.view(-1).index_add_ if adds else result.view(-1).index_copy_
            place(0, where.flatten(), piece.flatten().to(dtype))
    for at, piece in pieces:
        if any(skip) and not any(p and not s for p, s in zip(at, skip, strict=True)):
            torch.testing.assert_close(
                piece,
                dict(pieces)[tuple(0 for _ in at)],
                equal_nan=True,
                msg=f"copies of `{operand.value}` differ",
            )
    return result.to(first.dtype)
