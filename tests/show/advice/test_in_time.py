"""Splits in time that make devices exchange more than the plan without them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ssdsl.compile import compile_plan, compile_source
from ssdsl.show.advice.in_time import more_traffic, sent_bytes
from ssdsl.show.errors import MoreTraffic
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.render import render
from ssdsl.text.source import Source
from ssdsl.workspace import Compiled
from tests.captured import graph_of

ROOT = Path(__file__).parent.parent.parent.parent
SHIPPED = sorted(p for folder in ("examples", "examples/papers") for p in (ROOT / folder).glob("*.ssp"))
EXPERTS = """\
mesh gpus(ep = 4)

let experts = model["experts"]

split experts by experts into ep
split model - experts by batch into ep
assign model to gpus
"""
HEADS = """\
mesh gpus(dp = 4)

let attention = model.scaled_dot_product_attention

split attention by heads into dp
split model - attention by batch into dp
assign model to gpus
"""


def compiled(model: str, text: str) -> Compiled:
    return compile_source(Source("plan.ssp", text), graph_of(model), {}, None)


def said(model: str, text: str) -> list[MoreTraffic]:
    return list(more_traffic(compiled(model, text)))


def test_chunks_of_experts_that_cut_the_whole_batch(golden: Callable[[Path, str], None]) -> None:
    """The samples of a chunk lie on two of four devices, so they are gathered."""
    (found,) = said("mixtral:tiny", EXPERTS + "split experts by batch into c = 2\n")
    golden(ROOT / "tests" / "errors" / "E0298.err", render(found) + "\n")
    assert said("mixtral:tiny", EXPERTS) == []


def test_the_help_names_chunks_of_what_each_device_has() -> None:
    """Also for chunks along another dimension; what it says sends as little as the plan without chunks."""
    (found,) = said("mixtral:tiny", EXPERTS + "split experts by ffn into c = 2\n")
    assert said("mixtral:tiny", EXPERTS + "split experts by seq into c = 2\n") == []  # rows travel along both
    assert found.line == "split experts by tokens into c = 2"
    chunks = EXPERTS + f"{found.line}\n"
    assert said("mixtral:tiny", chunks) == []
    both = [sent_bytes(compiled("mixtral:tiny", text).program) for text in (chunks, EXPERTS)]
    assert both[0] == both[1]


def test_chunks_that_a_device_cannot_have_are_no_help() -> None:
    eight = EXPERTS.replace("ep = 4", "ep = 2, q = 4").replace(
        "split model -", "split model by batch into q\nsplit model -"
    )
    (found,) = said("mixtral:tiny", eight + "split experts by batch into c = 2\n")
    assert found.line is None and "leave this out" in found.change


def test_any_operators_that_are_cut_otherwise_than_their_neighbours() -> None:
    (found,) = said("gpt:tiny", HEADS + "split attention by batch into c = 2\n")
    assert (found.index, found.module, found.axes) == ("c", "transformer.h.*.attn", "`dp`")


def test_the_help_leads_to_as_few_bytes_as_before() -> None:
    of_all = HEADS.replace("split", "split model by batch into c = 2\nsplit", 1)
    assert said("gpt:tiny", of_all) == []
    assert sent_bytes(compiled("gpt:tiny", of_all).program) == sent_bytes(compiled("gpt:tiny", HEADS).program)


def test_the_bytes_are_those_that_a_ring_sends() -> None:
    """Of each of four layers: all_to_alls of queries, keys, values and results; three devices get three quarters of a
    device's fourth."""
    one = 8 * 64 * 128 * 4  # the activations of a layer
    assert sent_bytes(compiled("gpt:tiny", HEADS).program) == pytest.approx(4 * 2 * 4 * one * 3 / 4, rel=0.01)


@pytest.mark.thinned(9)
@pytest.mark.parametrize("model", ["gpt:tiny", "mixtral:tiny", "swin"])
@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
def test_shipped_plans_are_not_warned_of(path: Path, model: str) -> None:
    try:
        program = compile_plan(path, graph_of(model), {})
    except PlanError:
        pytest.skip("the plan is not for this model")
    assert list(more_traffic(program)) == []
