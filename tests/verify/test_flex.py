"""Flex attention, in process, against one device."""

from collections.abc import Callable
from pathlib import Path

import pytest

from bench.fuzz.trial import try_plan
from ssdsl.model.checks.check_capture import check_capture
from ssdsl.model.load import load
from ssdsl.model.trace import capture
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


def test_rows_of_a_tensor_are_refused(golden: Callable[[Path, str], None]) -> None:
    model = replace(load(f"{MODELS}/flex.py:by_rows"), name="flex")
    with pytest.raises(PlanError) as caught:
        capture(model)
    golden(Path(__file__).parent.parent / "errors" / "E0350.err", "\n".join(map(render, caught.value.diagnostics)))
