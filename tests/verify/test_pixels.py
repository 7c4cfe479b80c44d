"""Attention over pixels, cut by its keys: these lie on one axis, made of height and width."""

import pytest

from bench.fuzz.trial import try_plan
from ssdsl.compile import compile_source
from ssdsl.ir.function import Region
from ssdsl.model.graph import Graph
from ssdsl.runtime.options import Training
from ssdsl.text.source import Source
from tests.verify.conftest import ROOT, captured

TRAINING = Training(2, optimizer="sgd", lr=0.1)
KINDS = ("open_", "masked", "groups", "crossed")
PARTS = {
    "height": "mesh gpus(a = 2)\nsplit {ops} by {height} into a",
    "width": "mesh gpus(a = 2)\nsplit {ops} by {width} into a",
    "unequal": "mesh gpus(a = 2)\nsplit {ops} by {width} into a = [1, 5]",
    "apart": "mesh gpus(a = 2)\nsplit {ops} by {height} into a = [1, 1, 1, 1] parts [[0, 3], [2, 1]]",
    "both": "mesh gpus(a = 2, b = 2)\nsplit {ops} by {width} into b\nsplit {ops} by {height} into a",
    "sharded": "mesh gpus(a = 2)\nsplit {ops} by {width} into a\nsplit model.weights by row into a\n"
    "split model by batch into m = 2\nrecompute model",
}


def text_of(graph: Graph, parts: str) -> str:
    """A plan that cuts the keys of attention, the dimensions that its kernel combines."""
    (attention,) = (o for o in graph.operators if o.kind == "scaled_dot_product_attention")
    height, width = (f'"{d.name}"' for d in attention.dims if d.combined)
    ops = f"model.{attention.kind}"
    return PARTS[parts].format(ops=ops, height=height, width=width) + "\nassign model to gpus\n"


CASES = [("causal", parts) for parts in PARTS] + [(kind, parts) for kind in KINDS for parts in ("width", "both")]


@pytest.mark.thinned(9)
@pytest.mark.parametrize(("kind", "parts"), CASES)
def test_numbers_are_those_of_one_device(kind: str, parts: str) -> None:
    model, graph = captured(f"pixels.py:{kind}")
    outcome = try_plan(model, graph, text_of(graph, parts), TRAINING)
    assert outcome.kind == "equal", outcome.text


def test_a_kernel_is_told_positions_of_the_axis() -> None:
    """Of 4 x 6 pixels, columns 0 to 2 are three pixels of each row."""
    _, graph = captured("pixels.py:open_")
    program = compile_source(Source("plan.ssp", text_of(graph, "width")), graph, {}, ROOT).program
    (op,) = (o for f in program.functions for o in f.operators() if o.kernel.function == "attention_keys")
    columns = [tuple((6 * row + first, 6 * row + first + 3) for row in range(4)) for first in (0, 3)]
    assert op.kernel.region == Region(2, (4, 6), tuple(columns))
