"""Finds by trial the dimensions of a call that may be cut, and the tensors in which it is linear.

A *letter* says that axes of several tensors are one dimension. It is tried by cutting these axes, and joining or adding
the parts' results. Linear arguments are tried by adding and scaling them. Nothing is proved: the answer holds for the
numbers that were drawn.
"""

import itertools
import math
from collections.abc import Iterator, Sequence

import torch

from ssdsl.discover.draws import Draw, Shape
from ssdsl.discover.trial import Fails, Tensors, Trial
from ssdsl.model.capture.call import CapturedCall
from ssdsl.model.capture.overloads import target_of
from ssdsl.model.graph import refs_in
from ssdsl.record import Record

Axes = tuple[int | None, ...]  # for each tensor, its axis that has the letter
Pieces = tuple[tuple[int, ...], ...]  # the positions of each part
MOST_CANDIDATES = 3000  # for each size
MOST_PARTS = 64  # if several letters are cut together
# the error that rounding may cause, relative to the largest addend
CLOSE = {torch.float64: 1e-10, torch.complex128: 1e-10, torch.float32: 1e-5, torch.complex64: 1e-5}
COARSE = 1e-2  # half precision


class LetterCandidate(Record):
    """A letter: its axis in each input and each result, or None. If no result has it, it is summed."""

    size: int
    inputs: Axes
    outputs: Axes

    @property
    def is_summed(self) -> bool:
        return all(a is None for a in self.outputs)

    @property
    def rank(self) -> tuple[bool, int, int]:
        """The order of preference: letters that results have, then those of most tensors, then of similar positions."""
        axes = [a for a in (*self.inputs, *self.outputs) if a is not None]
        return self.is_summed, -len(axes), max(axes) - min(axes)


def letters(
    trial: Trial, shapes: Sequence[Shape], made: Sequence[Shape], settings: Sequence[list[Draw]]
) -> list[LetterCandidate]:
    """The letters that hold in all settings, alone and together. `shapes` are those of the call's inputs, `made` those
    of its results; a setting is a list of draws of inputs of one size."""
    passed = [c for c in candidates(shapes, made) if all(holds(trial, c, draws) for draws in settings)]
    chosen: list[LetterCandidate] = []
    for candidate in sorted(passed, key=lambda c: c.rank):
        if not any(_share_axis(candidate, c) for c in chosen) and all(
            hold_together(trial, [*chosen, candidate], draws) for draws in settings
        ):
            chosen.append(candidate)
    return chosen


def candidates(shapes: Sequence[Shape], made: Sequence[Shape]) -> Iterator[LetterCandidate]:
    """All letters that the sizes of axes allow: one axis of this size, or none, in each input; and one in each result,
    or none in any."""
    for size in sorted({n for s in shapes for n in s if n > 1}):
        given = [_axes_of(size, s) for s in shapes]
        results = [_axes_of(size, s) for s in made]
        outputs = itertools.product(*results) if all(results) else ()
        inputs = [i for i in itertools.product(*([*a, None] for a in given)) if any(x is not None for x in i)]
        both = itertools.product((*outputs, (None,) * len(made)), inputs)
        yield from (LetterCandidate(size, i, o) for o, i in itertools.islice(both, MOST_CANDIDATES))


def _axes_of(size: int, shape: Shape) -> list[int]:
    return [a for a, n in enumerate(shape) if n == size]


def _share_axis(a: LetterCandidate, b: LetterCandidate) -> bool:
    """Whether two letters have an axis in common."""
    pairs = zip((*a.inputs, *a.outputs), (*b.inputs, *b.outputs), strict=True)
    return any(x is not None and x == y for x, y in pairs)


def holds(trial: Trial, candidate: LetterCandidate, draws: Sequence[Draw]) -> bool:
    """Whether parts of every form give the results of the whole, for all draws."""
    size = _size(candidate, draws[0])
    if candidate.is_summed and not any(_adds(trial, candidate, d) for d in draws):
        return False
    return all(is_joined(trial, ((candidate, p),), d) for p in pieces(size) for d in draws)


def hold_together(trial: Trial, chosen: Sequence[LetterCandidate], draws: Sequence[Draw]) -> bool:
    """Whether parts cut along several letters at once give the results of the whole.

    If these are too many parts, the last letter is cut together with each other one in turn.
    """
    cuts = [(c, pieces(_size(c, draws[0]))[0]) for c in chosen]
    if math.prod(len(p) for _, p in cuts) <= MOST_PARTS:
        return all(is_joined(trial, cuts, d) for d in draws)
    return all(is_joined(trial, (other, cuts[-1]), d) for other in cuts[:-1] for d in draws)


def _size(candidate: LetterCandidate, draw: Draw) -> int:
    """The size of a letter's axes in this setting."""
    return next(x.shape[a] for x, a in zip(draw.given, candidate.inputs, strict=True) if a is not None)


def pieces(size: int) -> list[Pieces]:
    """Ways to cut an axis: a third and the rest, three parts, every other position, and single ones (of a long axis 16
    to 31 runs).

    >>> pieces(3)[:3]
    [((0,), (1, 2)), ((0,), (1,), (2,)), ((0, 2), (1,))]
    """
    every = tuple(range(size))
    third = max(1, size // 3)
    found: list[Pieces] = [(every[:third], every[third:])]
    if size > 2:
        found += [(every[:third], every[third : size - 1], every[size - 1 :]), (every[::2], every[1::2])]
        step = max(1, size // 16)
        found.append(tuple(every[i : i + step] for i in range(0, size, step)))
    return [tuple(p for p in parts if p) for parts in found]


def is_joined(trial: Trial, cuts: Sequence[tuple[LetterCandidate, Pieces]], draw: Draw) -> bool:
    """Whether the results and gradients of all parts, each added in its place, are those of the whole."""
    whole, wanted = draw.whole, (*draw.whole.outputs, *draw.whole.gradients)
    joined = [None if y is None else _zeros(y) for y in wanted]
    scale = [0.0] * len(wanted)  # the largest addend of each: sums round relative to that
    for parts in itertools.product(*(p for _, p in cuts)):
        at = [(c, torch.tensor(p)) for (c, _), p in zip(cuts, parts, strict=True)]
        given = [_taken(x, [(c.inputs[i], p) for c, p in at]) for i, x in enumerate(draw.given)]
        upstream = [_taken(g, [(c.outputs[i], p) for c, p in at]) for i, g in enumerate(draw.upstream)]
        try:
            part = trial.run(given, upstream, draw.learning)
        except Fails:
            return False
        if part.flows != whole.flows or len(part.outputs) != len(whole.outputs):
            return False
        for i, (y, total) in enumerate(zip((*part.outputs, *part.gradients), joined, strict=True)):
            of = wanted[i]
            if y is None or total is None or of is None:
                if y is not None or total is not None:
                    return False
                continue
            if y.dtype != of.dtype or not _add(total, y, [((*c.outputs, *c.inputs)[i], p) for c, p in at]):
                return False
            scale[i] = max(scale[i], _largest(y))
    pairs = zip(joined, wanted, scale, strict=True)
    return all(a is None or b is None or _is_close(a, b, most) for a, b, most in pairs)


def _adds(trial: Trial, candidate: LetterCandidate, draw: Draw) -> bool:
    """Whether at least two parts have results that are not zero: sums of zeros prove nothing."""
    if any(y.dtype is torch.bool for y in draw.whole.outputs):
        return False
    size, nonzero = _size(candidate, draw), 0
    for part in pieces(size)[-1]:
        given = [_taken(x, [(a, torch.tensor(part))]) for x, a in zip(draw.given, candidate.inputs, strict=True)]
        try:
            nonzero += all(_largest(y) > 0 for y in trial.forward(given))
        except Fails:
            return False
    return nonzero > 1


def _zeros(tensor: torch.Tensor) -> torch.Tensor:
    return torch.zeros(tensor.shape, dtype=torch.int64 if tensor.dtype is torch.bool else tensor.dtype)


def _taken(tensor: torch.Tensor, places: Sequence[tuple[int | None, torch.Tensor]]) -> torch.Tensor:
    """The part of a tensor at these positions of these axes."""
    for axis, positions in places:
        if axis is not None:
            tensor = tensor.index_select(axis, positions)
    return tensor


def _add(total: torch.Tensor, part: torch.Tensor, places: Sequence[tuple[int | None, torch.Tensor]]) -> bool:
    """Adds a part to `total` in its place; False if it has another shape than its place."""
    rows = [torch.arange(n) for n in total.shape]
    for axis, positions in places:
        if axis is not None:
            rows[axis] = positions
    if part.shape != tuple(map(len, rows)):
        return False
    if rows:
        total[torch.meshgrid(*rows, indexing="ij")] += part
    else:
        total += part
    return True


def _largest(tensor: torch.Tensor) -> float:
    return float(tensor.abs().max()) if tensor.numel() and tensor.dtype is not torch.bool else float(tensor.any())


def _is_close(joined: torch.Tensor, whole: torch.Tensor, largest: float) -> bool:
    """Whether both are equal up to the rounding of sums; integers exactly."""
    if not (whole.is_floating_point() or whole.is_complex()):
        return bool(torch.equal(joined, whole.to(joined.dtype)))
    allowed = CLOSE.get(whole.dtype, COARSE) * max(largest, _largest(whole))
    return bool(((joined - whole).abs() <= allowed).all())


# -- linear arguments --------------------------------------------------------------------------------------------------


FACTOR = -2.5  # of the test f(c x) = c f(x)


def linear_in(trial: Trial, draws: Sequence[Draw]) -> tuple[str, ...]:
    """The sets of arguments in which the call is linear, if all in a set change together: texts of names with spaces
    between them. Each argument of floating-point numbers is tried alone, then all of them."""
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
        return all(_is_linear_between(trial, chosen, a, b) for a, b in zip(draws, (*draws[1:], draws[0]), strict=True))
    except Fails:
        return False


def _is_linear_between(trial: Trial, chosen: set[int], a: Draw, b: Draw) -> bool:
    """Whether f(x + y) = f(x) + f(y) and f(c x) = c f(x): x are the chosen inputs of `a`, y those of `b`, and all
    others are those of `a`."""
    x = list(a.given)
    y = [v if i in chosen else u for i, (u, v) in enumerate(zip(a.given, b.given, strict=True))]
    both = [u + v if i in chosen else u for i, (u, v) in enumerate(zip(a.given, b.given, strict=True))]
    more = [FACTOR * u if i in chosen else u for i, u in enumerate(a.given)]
    of_x, of_y, of_both, of_more = (trial.forward(g) for g in (x, y, both, more))
    sums = [(p + q, r) for p, q, r in zip(of_x, of_y, of_both, strict=True)]
    pairs = (*sums, *((FACTOR * p, q) for p, q in zip(of_x, of_more, strict=True)))
    return all(p.shape == q.shape and _is_close(p, q, _largest(p)) for p, q in pairs)
