"""Draws inputs for experiments: numbers of several ranges and forms, as an operator may accept only some."""

import contextlib
import itertools
import random
from collections.abc import Callable, Iterator, Sequence

import torch

from ssdsl.discover.trial import Fails, NoBackward, Outcome, Tensors, Trial, Unsteady
from ssdsl.model.ops.functions import FunctionClass, integers_in
from ssdsl.record import Record

Shape = tuple[int, ...]
ENOUGH = 4  # draws
FEWEST = 2
MOST_INTEGERS = 200  # choices of ranges of integers that are tried
IGNORED = -100  # torch's own default
MOST_VALUES = 4
WIDER = {"float16": "float64", "bfloat16": "float64", "float32": "float64", "complex64": "complex128"}


class Draw(Record):
    """Inputs on which the call runs, the numbers of those with gradients, gradients of its results, and its outcome."""

    given: Tensors
    learning: frozenset[int]
    upstream: Tensors
    whole: Outcome


def _normal(shape: Shape, dtype: torch.dtype, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype) * scale


def _positive(shape: Shape, dtype: torch.dtype) -> torch.Tensor:
    return torch.rand(shape, dtype=dtype) + 0.1


def _inside(shape: Shape, dtype: torch.dtype) -> torch.Tensor:
    """Numbers between zero and one."""
    return torch.rand(shape, dtype=dtype)


def _definite(shape: Shape, dtype: torch.dtype) -> torch.Tensor:
    """Positive definite matrices, where the last two axes are equal."""
    x = torch.randn(shape, dtype=dtype)
    if len(shape) < 2 or shape[-1] != shape[-2]:
        return x
    return x @ x.mH + torch.eye(shape[-1], dtype=dtype)


def _rising(shape: Shape, dtype: torch.dtype) -> torch.Tensor:
    x = torch.randn(shape, dtype=dtype)
    return x if dtype.is_complex or not shape else x.sort(-1).values


FLOATS: tuple[Callable[[Shape, torch.dtype], torch.Tensor], ...] = (
    _normal,
    lambda shape, dtype: _normal(shape, dtype, 30.0),
    _positive,
    _definite,
    _rising,
    _inside,
    _normal,
    _definite,
)


def _below(shape: Shape, high: int) -> torch.Tensor:
    return torch.randint(0, high, shape)


def _offsets(shape: Shape, high: int) -> torch.Tensor:
    """Offsets of bags: rising, from zero."""
    x = torch.randint(0, high, shape).sort(-1).values
    return x - x[..., :1] if shape else x


def _full(shape: Shape, high: int) -> torch.Tensor:
    """Lengths from half of `high` to all of it."""
    return torch.randint((high + 1) // 2, high + 1, shape)


INTEGERS = (_below, _full, _offsets)
Integers = tuple[tuple[Callable[[Shape, int], torch.Tensor], int], ...]  # for each input of integers


def draws(trial: Trial, shapes: Sequence[Shape], dtypes: Sequence[torch.dtype], made: Sequence[Shape]) -> list[Draw]:
    """Several inputs of these shapes on which the call runs and gives finite numbers.

    `made` are the shapes of its results. All inputs of floats have gradients, except those for which torch says that
    they have none. Raises Fails if too few inputs are found.
    """
    integers = _integers(trial, shapes, dtypes, made)
    forms = [_drawn(shapes, dtypes, form, integers) for form in FLOATS]
    floats = [i for i, d in enumerate(dtypes) if d.is_floating_point or d.is_complex]
    learning = frozenset(i for i in floats if _has_gradient(trial, forms, i))
    found: list[Draw] = []
    reason = ""
    for given in forms:
        try:
            found.append(_draw(trial, given, learning))
        except Fails as error:
            reason = str(error)
    if len(found) < FEWEST:
        raise Fails(reason)
    return [*found[:ENOUGH], *_marked(trial, forms[0], learning)]


def _marked(trial: Trial, given: Tensors, learning: frozenset[int]) -> Iterator[Draw]:
    """Inputs of a user's function in which integers have values that mean something: -100, for labels that do not
    count, and numbers among the arguments."""
    if trial.careful or FunctionClass.of(trial.call.target) is None:  # others may read memory out of range
        return
    values = dict.fromkeys((IGNORED, *integers_in(str(trial.call.argument("given")))))
    for number, x in enumerate(given):
        if x.is_floating_point() or x.is_complex() or x.dtype is torch.bool:
            continue
        for value in list(values)[:MOST_VALUES]:
            marked = torch.where(torch.rand(x.shape) < 0.4, torch.tensor(value, dtype=x.dtype), x)
            with contextlib.suppress(Fails, Unsteady):
                yield _draw(trial, (*given[:number], marked, *given[number + 1 :]), learning)


def flows(trial: Trial, draw: Draw) -> tuple[bool, ...]:
    """For each result, whether a gradient flows through it; all True if the call fails with gradients."""
    leaves = [x.detach().requires_grad_(x.is_floating_point() or x.is_complex()) for x in draw.given]
    try:
        return tuple(y.requires_grad for y in trial.forward(leaves))
    except Fails:
        return (True,) * len(draw.whole.outputs)


def _has_gradient(trial: Trial, forms: Sequence[Tensors], number: int) -> bool:
    """Whether an input may have a gradient: not, if torch denies it for the first inputs on which the call runs."""
    for given in forms:
        try:
            upstream = tuple(_upstream(y) for y in trial.forward(given))
            trial.run(given, upstream, {number})
            return True
        except NoBackward:
            return False
        except Fails:
            continue
    return True


def _draw(trial: Trial, given: Tensors, learning: frozenset[int]) -> Draw:
    before = [x.clone() for x in given]
    upstream = tuple(_upstream(y) for y in trial.forward(given))
    whole, again = (trial.run(given, upstream, learning) for _ in range(2))
    if not all(map(torch.equal, before, given)):
        raise Fails("it changes its inputs")
    tensors = [*whole.outputs, *(g for g in whole.gradients if g is not None)]
    twice = [*again.outputs, *(g for g in again.gradients if g is not None)]
    if not all(torch.isfinite(x).all() for x in tensors):
        raise Fails("its results are not finite")
    if len(tensors) != len(twice) or not all(map(torch.equal, tensors, twice)):
        raise Unsteady("it gives other results when it runs again")
    return Draw(given, learning, upstream, whole)


def _upstream(result: torch.Tensor) -> torch.Tensor:
    dtype = result.dtype
    return torch.randn(result.shape, dtype=dtype) if dtype.is_floating_point or dtype.is_complex else result


def _drawn(
    shapes: Sequence[Shape],
    dtypes: Sequence[torch.dtype],
    form: Callable[[Shape, torch.dtype], torch.Tensor],
    integers: Integers,
) -> Tensors:
    ranges = iter(integers)
    found = []
    for shape, dtype in zip(shapes, dtypes, strict=True):
        if dtype is torch.bool:
            found.append(torch.rand(shape) < 0.5)
        elif dtype.is_floating_point or dtype.is_complex:
            found.append(form(shape, dtype))
        else:
            draw, high = next(ranges)
            found.append(draw(shape, high).to(dtype))
    return tuple(found)


def _integers(trial: Trial, shapes: Sequence[Shape], dtypes: Sequence[torch.dtype], made: Sequence[Shape]) -> Integers:
    """For each integer input, the widest range on which the call runs; ranges end at sizes of axes."""
    count = sum(not (d.is_floating_point or d.is_complex or d is torch.bool) for d in dtypes)
    if not count:
        return ()
    sizes = sorted({n for s in (*shapes, *made) for n in s if n > 1} | {2})

    def runs(chosen: Integers) -> bool:
        try:
            for _ in range(2):
                if not all(torch.isfinite(y).all() for y in trial.forward(_drawn(shapes, dtypes, _normal, chosen))):
                    return False
        except Fails:
            return False
        return True

    chosen = next(filter(runs, itertools.islice(_choices(count, sizes), MOST_INTEGERS)), None)
    if chosen is None:
        raise Fails("no range of integers was found on which it runs")
    for at in range(0 if trial.careful else count):
        draw, least = chosen[at]
        for high in (n for n in reversed(sizes) if n > least):
            wider = (*chosen[:at], (draw, high), *chosen[at + 1 :])
            if runs(wider):
                chosen = wider
                break
    return chosen


def _choices(count: int, sizes: Sequence[int]) -> Iterator[Integers]:
    """Choices of ranges: first one for all inputs, small ranges first; then any, at random."""
    for high in sizes:
        for draw in INTEGERS:
            yield ((draw, high),) * count
    each = list(itertools.product(INTEGERS, sizes))
    chance = random.Random(0)
    while count > 1:
        yield tuple(chance.choice(each) for _ in range(count))
