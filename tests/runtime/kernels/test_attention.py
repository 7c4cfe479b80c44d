"""A part of attention, on tensors as models lay them."""

import pytest
import torch
from torch.nn import functional as F

from ssdsl.runtime.kernels.attention import Attending

SEQ, DEPTH = 6, 4


def laid(order: str) -> torch.Tensor:
    """Queries, keys or values [1, 2, SEQ, DEPTH] whose rows are dense, or whose columns are."""
    if order == "rows":
        return torch.randn(1, 2, SEQ, DEPTH)
    return torch.randn(1, 2, DEPTH, SEQ).mT


@pytest.mark.parametrize("query", ["rows", "columns"])
@pytest.mark.parametrize("key", ["rows", "columns"])
@pytest.mark.parametrize("is_causal", [True, False])
def test_any_axis_may_be_dense(query: str, key: str, is_causal: bool) -> None:
    """The fused kernel takes rows for granted, and read other memory where columns were dense."""
    torch.manual_seed(0)
    tensors = [laid(query).requires_grad_(), laid(key).requires_grad_(), laid(key).requires_grad_()]
    expected = F.scaled_dot_product_attention(*(x.contiguous() for x in tensors), is_causal=is_causal)
    given = laid(key)
    wanted = torch.autograd.grad(expected, tensors, given)
    part = Attending(((0, SEQ),), ((0, SEQ),), is_causal, DEPTH**-0.5)
    output, log = torch.zeros(1, 2, SEQ, DEPTH), torch.full((1, 2, SEQ, 1), float("-inf"))
    with torch.no_grad():
        part.attend(tensors[0], tensors[1:], None, [output, log])
        gradients = [torch.zeros(1, 2, SEQ, DEPTH) for _ in tensors]
        part.attend_back(tensors[0], tensors[1:], None, (given, output, log), gradients, None)
    for have, want in zip([output, *gradients], [expected, *wanted], strict=True):
        torch.testing.assert_close(have, want)
