"""Finds the tensor arguments in which a call is linear, by adding and scaling them.

Nothing is proved: it holds for the numbers that were drawn.
"""

from collections.abc import Sequence

import torch

from ssdsl.model.capture.call import CapturedCall
from ssdsl.model.capture.overloads import target_of
from ssdsl.model.discover.draws import Draw
from ssdsl.model.discover.letters import CLOSE, COARSE
from ssdsl.model.discover.trial import Fails, Tensors, Trial
from ssdsl.model.graph import refs_in

FACTOR = -2.5  # of the test f(c x) = c f(x)


def linear_in(trial: Trial, draws: Sequence[Draw]) -> tuple[str, ...]:
    """Each text has the names of one or more arguments, with spaces between: the call is linear in these if all change
    together. Each argument of floating-point numbers is tried alone, then all of them."""
    names = parameters(trial.call)
    floats = [n for n in dict.fromkeys(names) if _is_float(n, names, draws[0].given)]
    if not floats or not all(y.is_floating_point() or y.is_complex() for y in draws[0].whole.outputs):
        return ()
    sets = [(n,) for n in floats] + ([tuple(floats)] if len(floats) > 1 else [])
    return tuple(" ".join(s) for s in sets if _is_linear(trial, {i for i, n in enumerate(names) if n in s}, draws))


def parameters(call: CapturedCall) -> tuple[str, ...]:
    """The name of each input's parameter."""
    given = target_of(call.target).given(call.args, call.kwargs)
    return tuple(name for name, argument in given.items() for _ in refs_in(argument))


def _is_float(name: str, names: Sequence[str], given: Tensors) -> bool:
    return all(x.is_floating_point() or x.is_complex() for n, x in zip(names, given, strict=True) if n == name)


def _is_linear(trial: Trial, chosen: set[int], draws: Sequence[Draw]) -> bool:
    try:
        return all(_holds(trial, chosen, a, b) for a, b in zip(draws, (*draws[1:], draws[0]), strict=True))
    except Fails:
        return False


def _holds(trial: Trial, chosen: set[int], a: Draw, b: Draw) -> bool:
    """Whether f(x + y) = f(x) + f(y) and f(c x) = c f(x), where all other inputs stay the same."""
    x = list(a.given)
    y = [v if i in chosen else u for i, (u, v) in enumerate(zip(a.given, b.given, strict=True))]
    both = [u + v if i in chosen else u for i, (u, v) in enumerate(zip(a.given, b.given, strict=True))]
    more = [FACTOR * u if i in chosen else u for i, u in enumerate(a.given)]
    of_x, of_y, of_both, of_more = (trial.forward(g) for g in (x, y, both, more))
    sums = [(p + q, r) for p, q, r in zip(of_x, of_y, of_both, strict=True)]
    return all(_is_close(p, q) for p, q in (*sums, *((FACTOR * p, q) for p, q in zip(of_x, of_more, strict=True))))


def _is_close(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape or not a.numel():
        return a.shape == b.shape
    largest = max(float(a.abs().max()), float(b.abs().max()))
    return bool(((a - b).abs() <= CLOSE.get(b.dtype, COARSE) * largest).all())
