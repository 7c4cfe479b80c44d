"""The content of a checkpoint: tensors under paths, of which each rank saves and loads its part, and facts that all
ranks share.

("model", "fc.weight")                        a weight or buffer, by the model's own name
("optim", "state", "fc.weight", "exp_avg")    the optimizer's state of a weight
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ..step.parts import LocalTensor

Path = tuple[str, ...]
Ints = tuple[int, ...]
Scalar = bool | int | float | torch.Tensor  # a tensor without axes
MODEL, STATE = ("model",), ("optim", "state")


@dataclass(frozen=True)
class Content:
    """This rank's part of a checkpoint.

    `facts` are plain values (see plain.py); `aliases` map the further names of tied weights to the first. Rank 0 saves
    its own. Commands read these facts: `steps`; `names`, the names of the model's state in order; `optimizer`,
    `{"param_groups": [{"params": names of weights, "lr": ...}]}` as in an optimizer's state_dict.
    """

    tensors: dict[Path, LocalTensor]
    scalars: dict[Path, Scalar] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)


def content_of(
    weights: Iterable[LocalTensor],
    state: Mapping[str, Mapping[str, LocalTensor | Scalar | None]],
    facts: dict[str, Any],
    more: Mapping[Path, Iterable[LocalTensor]] | None = None,
    aliases: Mapping[str, str] | None = None,
) -> Content:
    """A checkpoint of this rank's weights and buffers, its optimizer state by weight and key, and `more` tensors under
    paths of their own.

    >>> w, m = (LocalTensor.whole("w", torch.zeros(2)) for _ in range(2))
    >>> found = content_of([w], {"w": {"exp_avg": m, "step": 3.0}}, {}, {("ema",): [w]})
    >>> list(found.tensors), found.scalars
    ([('model', 'w'), ('optim', 'state', 'w', 'exp_avg'), ('ema', 'w')], {('optim', 'state', 'w', 'step'): 3.0})
    """
    content = Content({(*MODEL, held.name): held for held in weights}, facts=facts, aliases=aliases or {})
    for name, values in state.items():
        for key, value in values.items():
            if isinstance(value, LocalTensor):
                content.tensors[*STATE, name, key] = value
            elif value is not None:
                content.scalars[*STATE, name, key] = value
    for path, tensors in (more or {}).items():
        content.tensors.update({(*path, held.name): held for held in tensors})
    return content


# -- boxes, the form of parts in files ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Box:
    """A box of a tensor: it starts at `offsets` and has `sizes` elements on each axis."""

    offsets: Ints
    sizes: Ints

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.sizes)

    def within(self, tensor: torch.Tensor, offsets: Ints) -> torch.Tensor:
        """A view of this box in `tensor`, the tensor of a larger box that starts at `offsets`."""
        for dim, (start, first, n) in enumerate(zip(self.offsets, offsets, self.sizes, strict=True)):
            tensor = tensor.narrow(dim, start - first, n)
        return tensor


def boxes_of(held: LocalTensor) -> Iterator[tuple[Box, torch.Tensor]]:
    """Yields the boxes of the whole tensor that a rank holds, each with a view of its elements in `held.tensor`.

    A piece is the product of some positions on each axis. Each run of consecutive positions on each axis gives a box. A
    span of its flattened elements (ZeRO) is first cut into rows:

        elements [2, 9) of a piece [3, 4]        . . x x        rows of 4: the end of the first, the second whole,
                                                 x x x x        the start of the third: three boxes
                                                 x . . .

    Boxes do not overlap. A tensor without elements gives one box.
    """
    runs = [_runs(places) for places in held.piece.places()]
    local = tuple(sum(n for _, _, n in along) for along in runs)
    if 0 in held.piece.shape:
        yield Box((0,) * len(local), held.piece.shape), held.tensor.view(local)
        return
    if held.span is None:
        yield from _cut(Box((0,) * len(local), local), held.tensor.view(local), runs)
        return
    start = 0
    flat = held.tensor.view(-1)
    for slab in slabs(local, *held.span):
        yield from _cut(slab, flat[start : start + slab.size].view(slab.sizes), runs)
        start += slab.size


def _runs(places: torch.Tensor) -> list[tuple[int, int, int]]:
    """Runs of consecutive positions, as (start in the whole, start in the part, length).

    >>> _runs(torch.tensor([4, 5, 8, 9, 10]))
    [(4, 0, 2), (8, 2, 3)]
    """
    if not len(places):
        return []
    firsts = [0, *((places.diff() != 1).nonzero().flatten() + 1).tolist()]
    return [
        (int(places[first]), first, stop - first)
        for first, stop in zip(firsts, [*firsts[1:], len(places)], strict=True)
    ]


def _cut(slab: Box, tensor: torch.Tensor, runs: list[list[tuple[int, int, int]]]) -> Iterator[tuple[Box, torch.Tensor]]:
    """Cuts a box of the piece into boxes of the whole tensor, each with its elements."""
    along = []
    for first, n, known in zip(slab.offsets, slab.sizes, runs, strict=True):
        clipped = [(max(first, at), min(first + n, at + length), start - at) for start, at, length in known]
        along.append([(a, b - a, shift) for a, b, shift in clipped if a < b])
    for chosen in itertools.product(*along):
        inner = Box(tuple(a for a, _, _ in chosen), tuple(n for _, n, _ in chosen))
        yield Box(tuple(a + shift for a, _, shift in chosen), inner.sizes), inner.within(tensor, slab.offsets)


def slabs(shape: Ints, start: int, stop: int) -> Iterator[Box]:
    """The elements [start, stop) of the flattened shape as boxes, in order; at most two boxes per axis except the last.

    >>> [(b.offsets, b.sizes) for b in slabs((3, 4), 2, 9)]
    [((0, 2), (1, 2)), ((1, 0), (1, 4)), ((2, 0), (1, 1))]
    """
    if start >= stop:
        return
    if not shape:
        yield Box((), ())
        return
    row = math.prod(shape[1:])
    first, last = -(-start // row), stop // row  # the whole rows
    if last < first:  # inside one row
        yield from _row(shape, last, start - last * row, stop - last * row)
        return
    yield from _row(shape, first - 1, start - (first - 1) * row, row) if start < first * row else ()
    if first < last:
        yield Box((first, *(0,) * (len(shape) - 1)), (last - first, *shape[1:]))
    yield from _row(shape, last, 0, stop - last * row)


def _row(shape: Ints, at: int, start: int, stop: int) -> Iterator[Box]:
    for box in slabs(shape[1:], start, stop):
        yield Box((at, *box.offsets), (1, *box.sizes))


def divided(box: Box, limit: int) -> Iterator[Box]:
    """Cuts a box into boxes of at most `limit` elements, along rows where they fit.

    >>> [b.sizes for b in divided(Box((0, 0), (5, 4)), 8)]
    [(2, 4), (2, 4), (1, 4)]
    """
    if box.size <= limit:
        yield box
        return
    dim = next(d for d in range(len(box.sizes)) if box.sizes[d] > 1)
    step = max(1, limit // math.prod(box.sizes[dim + 1 :]))
    for start in range(0, box.sizes[dim], step):
        offsets, sizes = list(box.offsets), list(box.sizes)
        offsets[dim], sizes[dim] = offsets[dim] + start, min(step, sizes[dim] - start)
        yield from divided(Box(tuple(offsets), tuple(sizes)), limit)
