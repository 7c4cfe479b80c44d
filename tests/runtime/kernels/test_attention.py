"""A part of attention, on tensors as models lay them."""

import pytest
import torch
from torch.nn import functional as F

from ssdsl.runtime.kernels.attention import Attending, causal_attention_part
from ssdsl.runtime.kernels.windows import Part
from tests.live_memory import LiveMemory

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


@pytest.mark.parametrize("runs", [((2, 4),), ((0, 2), (4, 6))])
def test_runs_of_queries_while_memory_is_measured(runs: tuple[tuple[int, int], ...]) -> None:
    """Torch's own mask cannot be made where all operators are observed."""
    query, key, value = (torch.randn(1, 2, SEQ, DEPTH) for _ in range(3))
    expected = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    rows = [row for start, end in runs for row in range(start, end)]
    part = Part(2, runs[0][0], runs[-1][1], 0, SEQ, runs)
    with LiveMemory():
        found = causal_attention_part(query[:, :, rows], key, value, enable_gqa=False, parts=[part])
    torch.testing.assert_close(found, expected[:, :, rows])
