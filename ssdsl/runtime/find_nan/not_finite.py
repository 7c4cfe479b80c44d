"""Numbers that are not finite: whether a tensor has any, and where they stand in the whole tensor."""

import math
from collections.abc import Sequence
from enum import StrEnum

import torch

from ..layout.cut import Piece


class Kind(StrEnum):
    """What a tensor has beside finite numbers: NaN, or else infinities."""

    NAN = "NaN"
    INFINITY = "infinity"


WORDS = {Kind.NAN: "NaN", Kind.INFINITY: "infinite"}


def kind_of(x: torch.Tensor) -> Kind | None:
    """What a tensor has beside finite numbers; None if all are finite. It allocates no tensor of this size.

    >>> kind_of(torch.tensor([1.0, torch.inf])), kind_of(torch.tensor([torch.inf, torch.nan])), kind_of(torch.ones(2))
    (<Kind.INFINITY: 'infinity'>, <Kind.NAN: 'NaN'>, None)
    """
    return kind_in(range_of(x))


def kind_in(ends: tuple[float, float] | None) -> Kind | None:
    """The same, by a tensor's least and largest number."""
    if ends is None or all(map(math.isfinite, ends)):
        return None
    return Kind.NAN if any(map(math.isnan, ends)) else Kind.INFINITY


def range_of(x: torch.Tensor) -> tuple[float, float] | None:
    """The least and the largest number of a tensor, both NaN if it has one; None for a tensor without such numbers."""
    if x.is_complex():
        x = torch.view_as_real(x.resolve_conj())
    if not x.is_floating_point() or x.is_meta or x.layout != torch.strided or not x.numel():
        return None
    if x.dtype.itemsize == 1:  # float8 has no `aminmax`
        x = x.float()
    low, high = torch.aminmax(x.detach())
    return float(low), float(high)


def where(
    local: torch.Tensor, kind: Kind, piece: Piece, span: tuple[int, int] | None = None, axes: Sequence[str] = ()
) -> str:
    """The first place of such numbers in the whole tensor, and how many a part of it has. `span` are the elements of
    the flattened piece that the part has.

    >>> piece = Piece("x", (4, 2), ((0, 1, 4, 3),))
    >>> where(torch.tensor([[1.0, torch.nan]]), Kind.NAN, piece)
    'NaN at [3, 1] (1 of 2 elements)'
    >>> where(torch.tensor([[1.0, torch.nan]]), Kind.NAN, piece, axes=("batch", "seq"))
    'NaN at batch 3, seq 1 (1 of 2 elements)'
    """
    x = local.detach()
    bad = (x.isnan() if kind is Kind.NAN else x.isinf()).flatten().cpu()
    first = int(bad.to(torch.uint8).argmax()) + (0 if span is None else span[0])
    positions = piece.places()
    local_at = torch.unravel_index(torch.tensor(first), [len(p) for p in positions]) if positions else ()
    at = [int(p[int(k)]) for p, k in zip(positions, local_at, strict=True)]
    is_named = bool(at) and len(axes) == len(at)
    place = ", ".join(f"{a} {n}" for a, n in zip(axes, at, strict=True)) if is_named else f"{at}"
    return f"{WORDS[kind]} at {place} ({int(bad.sum())} of {bad.numel()} elements)"
