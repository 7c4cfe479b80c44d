"""Linear recurrences along an axis, the states of gated linear attention and of selective state spaces:

    h[t] = decay[t] * h[t - 1] + update[t]

    >>> linear_scan(torch.tensor([0.5]), torch.tensor([1.0, 2.0, 4.0]), None, dim=0)
    tensor([1.0000, 2.5000, 5.2500])
    >>> linear_scan(torch.tensor([0.5]), torch.tensor([1.0, 2.0, 4.0]), torch.tensor(2.0), dim=0, before=True)
    tensor([2., 2., 3.])

Steps run one after another, as in a loop of the model. A part of the axis begins with zeros; the parts exchange the
product of their decays and their last states, from which each computes the state in front of it. That state, times the
product of decays up to a step, is added to each of its own. In backward the gradients of states run the other way.

Source: Martin and Cundy, Parallelizing Linear Recurrent Neural Nets Over Sequence Length, 2018, section 2.
"""

from typing import Any

import torch

from ..ranks.numbers import has_numbers
from ..ranks.world import Group
from .own_gradient import Gradients, with_gradient
from .scan_and_topk import listed
from .softmax_and_max import widened

Tensor = torch.Tensor


def linear_scan(decay: Tensor, update: Tensor, initial: Tensor | None, dim: int, before: bool = False) -> Tensor:
    """The states after each step along `dim`, or those before each step. The shape is that of `update`.

    `decay` broadcasts to `update`; `initial`, zeros if None, to its shape without `dim`.
    """
    return _scan(decay, update, initial, dim, before, 0, None)


def linear_scan_parts(
    decay: Tensor, update: Tensor, initial: Tensor | None, dim: int, before: bool, part: int, group: Group
) -> Tensor:
    """This part of the states along `dim`; `decay` and `update` are parts too, `initial` is in front of the first."""
    return _scan(decay, update, initial, dim, before, part, group)


def _gradients(ctx: Any, given: Tensor) -> Gradients:
    """With c the gradient of the state before a step, through this step and all later ones, the gradient of the state
    after it is g + c', where c' is the c of the next step and g that of the result."""
    decay, states, totals = ctx.saved_tensors
    given, factor = given.movedim(ctx.dim, 0), decay.conj()
    through = torch.empty_like(given, memory_format=torch.contiguous_format)  # gradients of the states after each step
    carry = torch.zeros_like(through[0])
    for t in _steps(given, backward=True):
        if ctx.before:
            through[t] = carry
            carry = given[t] + factor[_at(decay, t)] * carry
        else:
            torch.add(given[t], carry, out=through[t])
            carry = factor[_at(decay, t)] * through[t]
    if totals is not None:
        first = carry
        later = listed(widened(carry), ctx.part, ctx.group)
        carry = torch.zeros_like(later[0])
        for total, other in zip(totals[ctx.part + 1 :].flip(0), later[ctx.part + 1 :].flip(0), strict=True):
            carry = other + total.conj() * carry
        rest = widened(factor).expand(len(given), *decay.shape[1:])[1:].flip(0).cumprod(0).flip(0)
        through[:-1] += (rest * carry).to(given.dtype)
        through[-1] += carry.to(given.dtype)
        carry = first + (totals[ctx.part].conj() * carry).to(given.dtype)
        carry = carry if ctx.part == 0 else torch.zeros_like(carry)
    needs_decay, needs_update, needs_initial = ctx.needs_input_grad[:3]
    return (
        (through * states[:-1].conj()).sum_to_size(decay.shape).movedim(0, ctx.dim) if needs_decay else None,
        through.movedim(0, ctx.dim) if needs_update else None,
        carry.sum_to_size(ctx.initial) if needs_initial else None,
    )


@with_gradient(_gradients)
def _scan(
    ctx: Any,
    decay: Tensor,
    update: Tensor,
    initial: Tensor | None,
    dim: int,
    before: bool,
    part: int,
    group: Group | None,
) -> Tensor:
    ctx.dim, ctx.before, ctx.part, ctx.group = dim % update.dim(), before, part, group
    ctx.initial = None if initial is None else initial.shape
    decay = decay.reshape([1] * (update.dim() - decay.dim()) + [*decay.shape]).movedim(dim, 0)
    update = update.movedim(dim, 0)
    states = update.new_empty(len(update) + 1, *update.shape[1:])
    states[0] = 0 if initial is None or part else initial
    for t in _steps(update):
        torch.mul(decay[_at(decay, t)], states[t], out=states[t + 1]).add_(update[t])
    totals = None
    if group is not None:
        products = widened(decay).expand(len(update), *decay.shape[1:]).cumprod(0)
        totals, last = (listed(x, part, group) for x in (products[-1], widened(states[-1])))
        if part:
            carry = last[0]
            for total, other in zip(totals[1:part], last[1:part], strict=True):
                carry = total * carry + other
            states[0] = carry
            states[1:] += (products * carry).to(update.dtype)
    ctx.save_for_backward(decay, states, totals)
    return (states[:-1] if before else states[1:]).movedim(0, dim)


def _steps(x: Tensor, *, backward: bool = False) -> range:
    """The steps along the first axis in the order in which they run; none of tensors that have no numbers."""
    count = len(x) if has_numbers(x) else 0
    return range(count)[::-1] if backward else range(count)


def _at(decay: Tensor, step: int) -> int:
    """The position of a step in decays, which may be the same for all steps."""
    return step if len(decay) > 1 else 0
