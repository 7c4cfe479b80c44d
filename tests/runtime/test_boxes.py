"""What a rank holds as boxes, against the elements one by one."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ssdsl.runtime.checkpoints.content import Box, boxes_of, divided, slabs
from ssdsl.runtime.layout.cut import Piece
from ssdsl.runtime.step.parts import LocalTensor


@st.composite
def pieces(draw: st.DrawFn) -> Piece:
    """A piece of up to three axes, taken up to three times, strided or not, of sizes that need not be powers of two."""
    takes, shape = [], []
    for dim in range(draw(st.integers(0, 3))):
        size = draw(st.integers(1, 3))
        for _ in range(draw(st.integers(0, 2))):  # from the inside out: each take multiplies what it is taken from
            outer, count = (
                draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0])),
                draw(st.integers(1, 3)),
            )
            takes.append((dim, outer, count, draw(st.integers(0, count - 1))))
            size *= count
        shape.append(size)
    return Piece("w", tuple(shape), tuple(reversed(takes)))


@st.composite
def holdings(draw: st.DrawFn) -> tuple[LocalTensor, torch.Tensor]:
    """What a rank holds, and the whole tensor, of which each element is its own number."""
    piece = draw(pieces())
    numbers = torch.arange(math.prod(piece.shape)).view(piece.shape)
    local = piece.of(numbers)
    if draw(st.booleans()):
        return LocalTensor("w", piece, None, local, True), numbers
    start = draw(st.integers(0, local.numel()))
    stop = draw(st.integers(start, local.numel()))
    return LocalTensor("w", piece, (start, stop), local.reshape(-1)[start:stop].clone(), True), numbers


@given(holdings())
@settings(max_examples=300, deadline=None)
def test_boxes_are_the_elements_that_are_held(drawn: tuple[LocalTensor, torch.Tensor]) -> None:
    held, numbers = drawn
    seen: list[int] = []
    for box, view in boxes_of(held):
        place = tuple(slice(o, o + n) for o, n in zip(box.offsets, box.sizes, strict=True))
        assert torch.equal(numbers[place], view)
        seen += view.reshape(-1).tolist()
    assert sorted(seen) == sorted(held.tensor.reshape(-1).tolist())


@given(holdings())
@settings(max_examples=100, deadline=None)
def test_writing_to_boxes_writes_to_what_is_held(drawn: tuple[LocalTensor, torch.Tensor]) -> None:
    held, _ = drawn
    before = held.tensor.clone()
    for _, view in boxes_of(held):
        view += 1
    assert torch.equal(held.tensor, before + 1)


@given(st.lists(st.integers(1, 4), max_size=4), st.data())
@settings(deadline=None)
def test_slabs_are_few_and_in_order(shape: list[int], data: st.DataObject) -> None:
    size = math.prod(shape)
    start = data.draw(st.integers(0, size))
    stop = data.draw(st.integers(start, size))
    found = list(slabs(tuple(shape), start, stop))
    numbers = torch.arange(size).view(shape)
    elements = [e for b in found for e in b.within(numbers, (0,) * len(shape)).reshape(-1).tolist()]
    assert elements == list(range(start, stop))
    assert len(found) <= max(1, 2 * len(shape) - 1)


@given(st.lists(st.integers(1, 9), max_size=3), st.integers(1, 40))
def test_divided_boxes_are_small_and_cover(sizes: list[int], limit: int) -> None:
    box = Box((1,) * len(sizes), tuple(sizes))
    numbers = torch.arange(box.size).view(sizes)
    parts = list(divided(box, limit))
    assert all(p.size <= limit for p in parts)
    assert sorted(e for p in parts for e in p.within(numbers, box.offsets).reshape(-1).tolist()) == list(
        range(box.size)
    )


def test_a_tensor_without_elements_is_a_box() -> None:
    ((box, view),) = boxes_of(LocalTensor.whole("w", torch.zeros(0, 3)))
    assert (box.offsets, box.sizes, tuple(view.shape)) == ((0, 0), (0, 3), (0, 3))
