"""Flex attention, and attention of packed documents, in process, against one device."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from bench.fuzz.trial import try_plan
from ssdsl.model.checks.check_capture import check_capture
from ssdsl.model.load import load
from ssdsl.model.module_to_graph import capture
from ssdsl.model.rewrite.masked_attention import documents_attention
from ssdsl.record import replace
from ssdsl.runtime.options import Training
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.render import render
from tests.captured import MODELS
from tests.verify.conftest import captured

MESH = "mesh gpus(dp = 2, tp = 2)\nsplit model by batch into dp\n{}\nassign model to gpus\n"
HEADS, SEQUENCE = MESH.format("split model by heads into tp"), MESH.format("split model by seq into tp")
AS_MASK = (
    "plain causally in_a_window of_documents behind_a_prefix by_distance by_a_table in_a_condition of_groups "
    "that_sees_nothing"
).split()
AS_SOFTMAX = "by_a_factor with_a_cap of_groups_with_a_cap with_a_sum with_results".split()


@pytest.mark.thinned(9)
@pytest.mark.parametrize("name", [*AS_MASK, *AS_SOFTMAX])
def test_by_heads_and_by_sequence(name: str) -> None:
    model, graph = captured(f"flex.py:{name}")
    assert check_capture(model, graph).is_compared  # with torch's own reference
    kinds = {operator.kind for operator in graph.operators}
    assert ("scaled_dot_product_attention" in kinds) == (name in AS_MASK)
    for plan in (HEADS, SEQUENCE):
        outcome = try_plan(model, graph, plan, Training(2, optimizer="sgd", lr=0.05))
        assert outcome.kind == "equal", outcome.text


def test_a_causal_mask_is_known_as_one() -> None:
    for name in ("causally", "of_groups"):
        (attention,) = [o for o in captured(f"flex.py:{name}")[1].operators if "attention" in o.kind]
        assert ("is_causal", True) in attention.kwargs


@pytest.mark.thinned(11)
@pytest.mark.parametrize("name", "whole causal in_a_window with_its_sum".split())
def test_documents_by_heads_and_by_sequence(name: str) -> None:
    pytest.importorskip("torch.nn.attention.varlen")  # since torch 2.10
    model, graph = captured(f"documents.py:{name}")
    for split in ("heads into tp where possible", "seq into tp"):
        plan = f"mesh gpus(tp = 2)\nsplit model by {split}\nassign model to gpus\n"
        outcome = try_plan(model, graph, plan, Training(2, optimizer="sgd", lr=0.05))
        assert outcome.kind == "equal", outcome.text


@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (2, 0), (1, 3)])
def test_each_document_is_attention_of_its_own(window: tuple[int, int]) -> None:
    """Documents of 3 and 5 queries with 4 and 5 keys: the last ones are at the same position."""
    before, after = window
    q, k, v = (torch.randn(n, 2, 4, dtype=torch.float64) for n in (8, 9, 9))
    bounds = torch.tensor([0, 3, 8]), torch.tensor([0, 4, 9])
    out, log_sum, _ = documents_attention(q, k, v, *bounds, 5, 5, window == (-1, 0), None, window)
    for (first, last), (start, end) in (((0, 3), (0, 4)), ((3, 8), (4, 9))):
        rows, keys, values = (x.transpose(0, 1) for x in (q[first:last], k[start:end], v[start:end]))
        distance = (torch.arange(start, end) - end) - (torch.arange(first, last) - last)[:, None]
        seen = (distance <= after if after >= 0 else distance == distance) & (
            distance >= -before if before >= 0 else distance == distance
        )
        expected = F.scaled_dot_product_attention(rows, keys, values, attn_mask=seen)
        torch.testing.assert_close(out[first:last], expected.transpose(0, 1))
        scores = (rows @ keys.transpose(1, 2) / 2).masked_fill(~seen, -torch.inf)
        torch.testing.assert_close(log_sum[:, first:last], scores.logsumexp(-1))


def test_rows_of_a_tensor_are_refused(golden: Callable[[Path, str], None]) -> None:
    model = replace(load(f"{MODELS}/flex.py:by_rows"), name="flex")
    with pytest.raises(PlanError) as caught:
        capture(model)
    golden(Path(__file__).parent.parent / "errors" / "E0350.err", "\n".join(map(render, caught.value.diagnostics)))
