"""Rules by which an operator that a loop calls once a step is called once, for all steps.

Values of all steps are one tensor whose first axis is that of the steps. Operands that are the same in all steps are
left as they are. In a loop of 8 steps with `matmul(q[:, t], w)`, q [8, batch, n] and w [n, m]:

    matmul(q [batch, n], w [n, m])  ->  matmul(q [8, batch, n], w [n, m])
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from ssdsl.model.capture.call import CapturedCall
from ssdsl.model.graph import Ref
from ssdsl.model.ops.families.contraction import equation_of
from ssdsl.model.rewrite.constants import is_pointwise

Tensor = torch.Tensor


class StepOperand:
    """A tensor of all `steps`, or one that is `same` in each. `rank` is that of one step."""

    def __init__(self, tensor: Tensor, steps: int, *, same: bool) -> None:
        self.tensor, self.steps, self.same = tensor, steps, same
        self.shape = tensor.shape if same else tensor.shape[1:]
        self.rank = len(self.shape)

    def aligned(self, rank: int) -> Tensor:
        """The tensor with axes of size one before those of a step, so that it broadcasts to tensors of this rank."""
        if self.same or rank <= self.rank:
            return self.tensor
        return self.tensor.reshape(self.steps, *[1] * (rank - self.rank), *self.shape)

    def each(self) -> Tensor:
        """The tensor with an axis of steps in any case."""
        return self.tensor.expand(self.steps, *self.shape) if self.same else self.tensor


Rule = Callable[[CapturedCall, list[Any], tuple[int, ...], int], Tensor]  # of a call of one step, all its arguments


class NoRule(Exception):
    """An operator cannot be called for all steps at once."""


def _operands(args: list[Any]) -> list[StepOperand]:
    return [leaf for leaf in tree_leaves(args) if isinstance(leaf, StepOperand)]


def _pointwise(call: CapturedCall, args: list[Any], shape: tuple[int, ...], steps: int) -> Tensor:
    given = tree_map(lambda a: a.aligned(len(shape)) if isinstance(a, StepOperand) else a, args)
    return call.target(*given, **call.kwargs)  # type: ignore[no-any-return]


def _of_last_axes(call: CapturedCall, args: list[Any], shape: tuple[int, ...], steps: int) -> Tensor:
    """Operators whose arguments name no axes, or the last ones; the further operands are the same in all steps."""
    first, *others = _operands(args)
    if first.same or not all(o.same for o in others):
        raise NoRule
    given = tree_map(lambda a: a.tensor if isinstance(a, StepOperand) else a, args)
    return call.target(*given, **call.kwargs)  # type: ignore[no-any-return]


def _along_axes(call: CapturedCall, args: list[Any], shape: tuple[int, ...], steps: int) -> Tensor:
    """Operators whose arguments name axes by their numbers: each is one further behind."""
    first = _operands(args)[0]
    if isinstance(args[0], StepOperand) and len(_operands(args)) > 1:
        raise NoRule
    rank = first.rank + (call.kind in ("stack", "unsqueeze"))

    def behind(axis: Any) -> Any:
        if axis is None or axis == []:  # all axes
            return [*range(1, rank + 1)]
        return [behind(a) for a in axis] if isinstance(axis, (list, tuple)) else axis % max(1, rank) + 1

    names = [p.name for p in call.target._schema.arguments]
    given = [behind(a) if n in ("dim", "dims", "dim0", "dim1") else a for n, a in zip(names, args, strict=False)]
    given = tree_map(lambda a: a.each() if isinstance(a, StepOperand) else a, given)
    return call.target(*given, **call.kwargs)  # type: ignore[no-any-return]


def _reshape(call: CapturedCall, args: list[Any], shape: tuple[int, ...], steps: int) -> Tensor:
    return args[0].tensor.reshape(steps, *shape)  # type: ignore[no-any-return]


def _expand(call: CapturedCall, args: list[Any], shape: tuple[int, ...], steps: int) -> Tensor:
    return args[0].aligned(len(shape)).expand(steps, *shape)  # type: ignore[no-any-return]


def _transpose_matrix(call: CapturedCall, args: list[Any], shape: tuple[int, ...], steps: int) -> Tensor:
    return args[0].tensor.transpose(1, 2) if len(shape) == 2 else args[0].tensor.clone()  # type: ignore[no-any-return]


def _matmul(call: CapturedCall, args: list[Any], shape: tuple[int, ...], steps: int) -> Tensor:
    """Products of matrices and vectors; a vector is a matrix of one row or column."""
    left, right = args[:2]
    are_vectors = left.rank == 1 or right.rank == 1
    if left.rank == 1:
        left = StepOperand(left.tensor.unsqueeze(-2), steps, same=left.same)
    if right.rank == 1:
        right = StepOperand(right.tensor.unsqueeze(-1), steps, same=right.same)
    rank = max(left.rank, right.rank)
    product = left.aligned(rank) @ right.aligned(rank)
    return product.reshape(steps, *shape) if are_vectors else product  # type: ignore[no-any-return]


def _matmul_added(call: CapturedCall, args: list[Any], shape: tuple[int, ...], steps: int) -> Tensor:
    if any(call.argument(word) != 1 for word in ("beta", "alpha")):
        raise NoRule
    return args[0].aligned(len(shape)) + _matmul(call, args[1:3], shape, steps)  # type: ignore[no-any-return]


def _einsum(call: CapturedCall, args: list[Any], shape: tuple[int, ...], steps: int) -> Tensor:
    left, right = equation_of(args[0].replace(" ", ""))
    letter = next(c for c in "nstABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmopqruvwxyz" if c not in left)
    parts = zip(left.split(","), args[1], strict=True)
    equation = ",".join(part if o.same else letter + part for part, o in parts)
    return torch.einsum(f"{equation}->{letter}{right}", *(o.tensor for o in args[1]))


MATRIX_PRODUCTS = "matmul mm bmm mv dot".split()
ALONG_AXES = """
sum prod amax amin softmax log_softmax logsumexp cumsum cumprod select slice transpose permute squeeze unsqueeze
flip cat stack any all
""".split()
RULES: dict[str, Rule] = {
    **dict.fromkeys(("reshape", "view"), _reshape),
    "expand": _expand,
    "t": _transpose_matrix,
    "einsum": _einsum,
    **dict.fromkeys(MATRIX_PRODUCTS, _matmul),
    **dict.fromkeys(("addmm", "baddbmm", "addmv"), _matmul_added),
    **dict.fromkeys("linear layer_norm rms_norm tril triu _to_copy".split(), _of_last_axes),
    **dict.fromkeys(ALONG_AXES, _along_axes),
}


def rule_of(call: CapturedCall) -> Rule:
    """The rule of the operator that a step calls. Raises NoRule if there is none."""
    if call.target.namespace != "aten":
        raise NoRule
    rule = RULES.get(call.kind) or (_pointwise if is_pointwise(call) else None)
    if rule is None:
        raise NoRule
    return rule


# -- zeros -------------------------------------------------------------------------------------------------------------

MOVES = "reshape view expand t sum select slice transpose permute squeeze unsqueeze flip neg _to_copy".split()
PRODUCTS = [*MATRIX_PRODUCTS, "mul", "einsum"]


def is_zero(call: CapturedCall, operands: list[bool]) -> bool:
    """Whether a call's result is zero if those of its operands are zero for which it is said."""
    if call.kind in PRODUCTS:
        return any(operands)
    if call.kind in ("add", "sub") and not isinstance(call.argument("other"), Ref):
        return False
    if call.kind in (*MOVES, "add", "sub", "cat", "stack"):
        return bool(operands) and all(operands)
    return call.kind == "div" and operands[:1] == [True]
