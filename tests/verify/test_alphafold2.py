"""Plans of a model that is recycled: three forwards and one backward, and dynamic axial parallelism."""

from collections.abc import Callable
from typing import Any

import pytest

from ssdsl.compile import compile_plan
from ssdsl.show.tables.communication import communications
from tests.verify.conftest import ROOT, captured

PAPERS = ROOT / "examples" / "papers"
TINY = "alphafold2:tiny,batch=4,blocks=1"


@pytest.mark.thinned(11)
@pytest.mark.parametrize(
    ("plan", "params"),
    [
        pytest.param("dap", {"D": 2, "M": 2}, marks=pytest.mark.slow),
        ("3f1b", {"A": 2}),
        ("in_turn", {}),
        ("zero2", {"M": 2}),
    ],
    ids=["dap", "3f1b", "in_turn", "zero2"],
)
def test_its_plans_train_as_one_device(program: Callable[..., Any], plan: str, params: dict[str, int]) -> None:
    program(PAPERS / f"alphafold2_{plan}.ssp", TINY, **params).verify()


def test_axes_are_exchanged_by_all_to_all() -> None:
    """Rows of sequences to columns and back, pairs to transposed pairs and back; biases and factors are gathered."""
    _, graph = captured(TINY)
    compiled = compile_plan(PAPERS / "alphafold2_dap.ssp", graph, {"R": 0, "M": 1})
    found = {(c.kind, c.of) for c in communications(compiled.program)}
    for part in ("rows", "outgoing", "incoming", "start", "end"):
        assert any(kind == "all_to_all" and of.endswith(f"{part} add") for kind, of in found), part
    assert {kind for kind, of in found if "outer.right" in of} == {"all_gather", "reduce_scatter"}
