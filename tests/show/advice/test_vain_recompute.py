"""Which `recompute` save nothing, and what is said of them."""

from collections.abc import Callable
from pathlib import Path

from ssdsl.cluster.load import load_cluster
from ssdsl.compile import compile_source
from ssdsl.show.advice.vain_recompute import vain_recompute
from ssdsl.text.render import render
from ssdsl.text.source import Source
from tests.captured import graph_of

ERRORS = Path(__file__).parent.parent.parent / "errors"
PLAN = "mesh gpus(dp = 2)\nsplit model by batch into dp\nassign model to gpus\n"
HALVES = """
mesh gpus(pp = 2)
split model by batch into m = 2
let stage = balance(model, 2)
assign stage[s] to gpus[pp = s] for s in 0..2
use pipeline: zb_h1
zb_h1(stage, 2)
"""


def said(word: str, plan: str = PLAN, cluster: str | None = None, spec: str = "llama:tiny") -> str:
    source = Source("plan.ssp", plan + word + "\n")
    program = compile_source(source, graph_of(spec), {}, Path()).program
    found = vain_recompute(program, source, load_cluster(cluster) if cluster else None)
    return "\n\n".join(map(render, found)) + "\n"


def test_sums_save_nothing(golden: Callable[[Path, str], None]) -> None:
    """They save nothing, but what enters them is kept to compute them again."""
    golden(ERRORS / "E0296.err", said("recompute model.add"))


def test_each_statement_is_looked_at_by_itself() -> None:
    assert said("recompute model.add\nrecompute model.silu").count("E0296") == 1


def test_an_activation_that_its_product_saves() -> None:
    """Nothing is saved where both halves of a backward need its result."""
    assert "E0296" not in said("recompute model.silu | model.mul")
    assert "E0296" in said("recompute model.silu", HALVES)


def test_weights_in_parts() -> None:
    """Weights of a section are gathered ahead, and sections are others without the recomputation."""
    plan = PLAN.replace("assign", "split model.weights by row into dp\nassign")
    assert "E0296" in said("recompute model.add", plan)
    assert "E0296" not in said("recompute model", plan)


def test_kernels_of_a_cluster() -> None:
    """A norm's pointwise operators are one kernel there: it keeps little, and with a part recomputed, more."""
    assert "E0296" in said("recompute model.rsqrt", cluster="h100x8")
    assert "E0296" not in said("recompute model.silu | model.mul", cluster="h100x8")
