"""Whole tensors from pieces: what is cut comes back, what is missing is named, how far copies differ is noted."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ssdsl.run.errors import PiecesIncomplete
from ssdsl.run.verify.assemble import RankPiece, assemble
from ssdsl.text.diagnostic import PlanError

Take = tuple[int, int, int, int]


def piece(full: torch.Tensor, *takes: Take) -> RankPiece:
    """What a rank holds of a tensor after these takes, cut the plain way."""
    local = full
    for dim, outer, n, k in takes:
        parts = local.unflatten(dim, (outer, n, local.shape[dim] // (outer * n)))
        local = parts.select(dim + 1, k).flatten(dim, dim + 1)
    return {"shape": tuple(full.shape), "takes": list(takes), "tensor": local.contiguous()}


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(1, 2), st.integers(0, 1))
def test_cut_twice_and_put_together(outer: int, n: int, rest: int, m: int, dim: int) -> None:
    shape = (outer * n * rest * m, 6) if dim == 0 else (6, outer * n * rest * m)
    full = torch.randn(shape)
    ranks = [(k, j) for k in range(n) for j in range(m)]
    pieces = {r: {"w": piece(full, (dim, outer, n, k), (dim, 1, m, j))} for r, (k, j) in enumerate(ranks)}
    assert torch.equal(assemble("weight", pieces).tensors["w"], full)


def test_the_strided_part_of_a_fused_projection() -> None:
    full = torch.arange(5 * 12).view(5, 12)
    pieces = {rank: {"w": piece(full, (1, 3, 2, rank))} for rank in range(2)}
    assert pieces[0]["w"]["tensor"][0].tolist() == [0, 1, 4, 5, 8, 9]
    assert torch.equal(assemble("weight", pieces).tensors["w"], full)


def test_scalars_and_copies() -> None:
    one = torch.tensor(3.0)
    assert assemble("buffer", {0: {"n": piece(one)}, 1: {"n": piece(one)}}).tensors["n"] == 3.0


def test_different_ranks_hold_different_tensors() -> None:
    a, b = torch.randn(4), torch.randn(2, 3)
    whole = assemble("weight", {0: {"a": piece(a)}, 1: {"b": piece(b)}})
    assert torch.equal(whole.tensors["a"], a) and torch.equal(whole.tensors["b"], b)


def test_a_missing_piece() -> None:
    with pytest.raises(PlanError) as caught:
        assemble("weight", {0: {"w": piece(torch.randn(4, 2), (0, 1, 2, 1))}})
    (found,) = caught.value.diagnostics
    assert isinstance(found, PiecesIncomplete) and "no rank holds element [0, 0] of [4, 2]" in found.reason


def test_a_piece_of_the_wrong_shape() -> None:
    wrong = piece(torch.randn(4, 2), (0, 1, 2, 1)) | {"takes": []}
    with pytest.raises(PlanError, match="do not hold all of weight `w`"):
        assemble("weight", {0: {"w": wrong}})  # type: ignore[dict-item]


def test_copies_that_differ_most_are_noted() -> None:
    full = torch.ones(4, 4)
    other = full.clone()
    other[2, 3] += 1e-3
    other[3, 0] += 1e-4
    whole = assemble("weight", {0: {"w": piece(full)}, 3: {"w": piece(other, (0, 1, 2, 1))}})
    spread = whole.spreads["w"]
    assert (spread.first, spread.second, spread.index) == (0, 3, (2, 3))
    assert spread.error == pytest.approx(1e-3, rel=1e-3)


def test_equal_copies_have_no_spread() -> None:
    full = torch.tensor([1.0, float("nan"), float("inf")])
    assert not assemble("weight", {0: {"w": piece(full)}, 1: {"w": piece(full.clone())}}).spreads
