"""A model whose weights, inputs and computed scalars are perturbed by one unit in the last place."""

import copy
from dataclasses import replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ssdsl.model.load.model import Model


def nudged(model: Model, seed: int, precision: torch.dtype) -> Model:
    """A copy with each weight and input element one unit of `precision` up or down, at random.

    Whole numbers are not changed: among inputs they are labels, indices or masks; among weights the initial value of a
    scale, or a sign that an orthogonal matrix keeps there. A tensor in a coarser type than `precision` changes by its
    own unit.
    """
    draw = torch.Generator().manual_seed(seed)
    module = copy.deepcopy(model.module)
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(_nudged(weight, draw, precision))
        batches = tuple({name: _nudged(t, draw, precision) for name, t in batch.items()} for batch in model.batches)
    return replace(model, module=module, batches=batches)


def real_of(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor with the real and the imaginary parts of complex numbers along a last axis; any other as it is."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _nudged(tensor: torch.Tensor, draw: torch.Generator, precision: torch.dtype) -> torch.Tensor:
    if tensor.is_complex():
        return torch.view_as_complex(_nudged(real_of(tensor), draw, precision))
    if not tensor.is_floating_point():
        return tensor
    return torch.where(tensor == tensor.round(), tensor, _moved(tensor, draw, precision))


def _moved(tensor: torch.Tensor, draw: torch.Generator, precision: torch.dtype) -> torch.Tensor:
    """`x` plus or minus `eps 2^floor(log2 |x|)`, the distance to the next number of that precision."""
    eps = max(torch.finfo(precision).eps, torch.finfo(tensor.dtype).eps)
    exact = tensor.detach().double()
    unit = torch.ldexp(torch.full_like(exact, eps), torch.frexp(exact).exponent - 1)
    sign = torch.randint(0, 2, exact.shape, generator=draw).to(exact.device) * 2 - 1
    limit = torch.finfo(tensor.dtype).max
    moves = exact.isfinite() & (exact != 0)
    return torch.where(moves, (exact + sign * unit).clamp(-limit, limit), exact).to(tensor.dtype)


class RoundedScalars(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Moves every scalar that an operator computes one unit of its type up or down, at random.

    A tensor's elements round otherwise where weights are nudged. A number may be too coarse for that: `1 - loss / 2`
    of a loss near two has digits of its own, which other weights leave as they are and another order of sums does not.
    A number that is an element of an operand, but for its sign, is chosen and not computed, and so exact: a maximum or
    a median, whose backward looks for that very element. With `elements`, each element of each result moves as well.
    """

    def __init__(self, seed: int, elements: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.draw, self.elements = torch.Generator().manual_seed(seed), elements

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        is_new = all(r.alias_info is None for r in function._schema.returns)
        if not is_new or not isinstance(result, torch.Tensor) or not result.is_floating_point():
            return result
        if result.dim():
            return _nudged(result, self.draw, result.dtype).to(result.device) if self.elements else result
        if _is_chosen(result, (args, kwargs)):
            return result
        return _moved(result, self.draw, result.dtype).to(result.device)


def _is_chosen(result: torch.Tensor, operands: Any) -> bool:
    """Whether a number is an element of an operand, up to its sign."""
    given = (t for t in tree_leaves(operands) if isinstance(t, torch.Tensor) and t.is_floating_point())
    return any(bool((t.abs() == result.abs()).any()) for t in given)
