"""Parts made one, and the gradient given back: as autograd says of the join itself."""

import itertools

import pytest
import torch

from ssdsl.runtime.step.joins import GradientAccumulator, Input, Join

OVERLAPPING = (((0, 3),), ((2, 5), (6, 7)), ((4, 8),))
CASES = {
    "sum": (Input("x", ("m",), (Join("m", 3),)), [(4,)] * 3),
    "joined": (Input("x", ("m",), (Join("m", 3, dim=0),)), [(2, 3)] * 3),
    "joined in blocks": (Input("x", ("m",), (Join("m", 3, dim=1, outer=2),)), [(2, 4)] * 3),
    "unequal in another order": (
        Input("x", ("m",), (Join("m", 3, dim=0, outer=2, at=(((3, 4),), ((0, 3),), ((4, 6),))),)),
        [(2,), (6,), (4,)],
    ),
    "what windows read": (
        Input("x", ("m",), (Join("m", 3, dim=1, at=(((0, 3),), ((3, 5),), ((5, 8),)), reads=OVERLAPPING),)),
        [(2, 3), (2, 2), (2, 3)],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_parts(name: str) -> None:
    given, shapes = CASES[name]
    generator = torch.Generator().manual_seed(0)
    parts = {(k,): torch.randn(shape, generator=generator, requires_grad=True) for k, shape in enumerate(shapes)}
    found, expected = GradientAccumulator(), {}
    for at in range(1, 3):
        read = {part: parts[part] for part in given.parts({"m": at})}
        value = given.value(read, {"m": at})
        gradient = torch.randn(value.shape, generator=generator)
        for part, x in zip(read, torch.autograd.grad(value, [*read.values()], gradient), strict=True):
            expected[part] = expected.get(part, 0) + x
        for part, share, regions in given.split(gradient, {"m": at}):
            found.add(("x", part), share, regions)
    for part in parts:
        sums = found.pop(("x", part))
        assert torch.allclose(sums, expected[part]) if part in expected else sums is None, part


def test_earlier_parts_are_those_before_the_running_one() -> None:
    given = Input("x", ("s", "m"), earlier="m")
    assert [*given.parts({"s": 1, "m": 2})] == [(1, 0), (1, 1)]
    assert [*given.parts({"s": 1, "m": 0})] == []


def test_two_indices_are_joined_one_after_another() -> None:
    given = Input("x", ("m", "s", "k"), (Join("m", 2, dim=0), Join("k", 2, dim=1, outer=2)))
    whole = torch.arange(32.0).view(4, 8)
    blocks = whole.view(4, 2, 2, 2)
    parts = {(m, 1, k): blocks[2 * m : 2 * m + 2, :, k].reshape(2, 4) for m, k in itertools.product(range(2), range(2))}
    assert list(given.parts({"s": 1})) == list(parts)
    assert torch.equal(given.value(parts, {"s": 1}), whole)
    for part, share, regions in given.split(whole, {"s": 1}):
        assert torch.equal(share, parts[part]) and not regions


def test_a_region_of_what_is_cut_again() -> None:
    """One part of the reader has the first of the three rows that are parts of one part; the other has the rest."""
    at, reads = (((0, 3),), ((3, 6),)), (((0, 1),), ((1, 6),))
    given = Input("x", ("m", "n"), (Join("n", 3, dim=0), Join("m", 2, dim=0, at=at, reads=reads)))
    x, found = torch.randn(6, 2), GradientAccumulator()
    parts = {(m, n): x[3 * m + n : 3 * m + n + 1] for m in range(2) for n in range(3)}
    for m, (start, end) in enumerate(((0, 1), (1, 6))):
        read = {part: parts[part] for part in given.parts({"m": m})}
        assert torch.equal(given.value(read, {"m": m}), x[start:end])
        for part, share, regions in given.split(x[start:end], {"m": m}):
            found.add(("x", part), share, regions)
    for part, value in parts.items():
        assert torch.equal(found.pop(("x", part)), value)


def test_unequal_parts_of_what_is_cut_again() -> None:
    """Parts of unequal size in each of the two parts along another index."""
    t = Join("t", 2, dim=0, outer=2, at=(((0, 8),), ((8, 13),)))
    given, x = Input("x", ("m", "t"), (Join("m", 2, dim=0), t)), torch.randn(26, 2)
    blocks = {(m, k): x[13 * m + 8 * k : 13 * m + (8, 13)[k]] for m in range(2) for k in range(2)}
    assert torch.equal(given.value({part: blocks[part] for part in given.parts({})}, {}), x)
    found = {part: share for part, share, _ in given.split(x, {})}
    assert found.keys() == blocks.keys() and all(torch.equal(found[part], blocks[part]) for part in blocks)
