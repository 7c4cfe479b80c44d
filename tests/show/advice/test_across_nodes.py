"""Which axes exchange activations between nodes, and what is said of them."""

from pathlib import Path

import pytest

from ssdsl.cluster.load import load_cluster
from ssdsl.compile import compile_source
from ssdsl.ir.program import Program
from ssdsl.model.graph import Graph
from ssdsl.show.advice.across_nodes import across_nodes
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.render import render
from ssdsl.text.source import Source
from tests.captured import graph_of

PLAN = """\
mesh gpus({axes})
split model by batch into dp
split model by heads into tp
split model by ffn into tp
assign model to gpus
"""


@pytest.fixture(scope="module")
def graph() -> Graph:
    return graph_of("gpt:350m,layers=2,batch=16")


def program(graph: Graph, axes: str) -> Program:
    return compile_source(Source("p.ssp", PLAN.format(axes=axes)), graph, {}, Path()).program


def said(graph: Graph, axes: str, cluster: str = "v100x32") -> str:
    return "\n".join(map(render, across_nodes(program(graph, axes), load_cluster(cluster))))


def test_tensor_parallelism_inside_a_node_is_fine(graph: Graph) -> None:
    assert said(graph, "dp = 4, tp = 8") == ""
    assert said(graph, "dp = 2, tp = 16") == ""


def test_the_order_of_axes_is_turned(graph: Graph) -> None:
    text = said(graph, "tp = 8, dp = 4")
    assert "warning[E0613]: `tp` exchanges activations between nodes of `v100x32`" in text
    assert "p.ssp:1:1" in text and "ranks 0, 4, 8, 12, ... are on nodes 0, 1" in text
    assert "write `mesh gpus(dp = 4, tp = 8)`" in text
    assert said(graph, "dp = 4, tp = 8") == ""  # the change does what it says


def test_an_axis_wider_than_a_node(graph: Graph) -> None:
    narrow = PLAN.replace("split model by heads into tp\n", "")
    wide = compile_source(Source("p.ssp", narrow.format(axes="dp = 1, tp = 32")), graph, {}, Path()).program
    (warning,) = across_nodes(wide, load_cluster("v100x32"))
    assert "make tp at most 16, the devices of a node; it is 32" in render(warning)


def test_the_traffic_is_that_of_the_collectives(graph: Graph) -> None:
    """Two layers of two all_reduces forward and two backward, of 16 / dp samples; dp = 4 lines of tp lie side by side.

    Of a ring over 8 ranks on two nodes, 2 * 7/8 of the data leave a node; each node has a half of each of the 4 lines.
    """
    one = 16 // 4 * 2048 * 1024 * 4
    expected = 4 * 2 * 4 * one * 2 * 7 / 8
    assert f"a node sends {expected / 1e9:.3g} GB a step" in said(graph, "tp = 8, dp = 4")


def test_processes_on_the_cores_of_one_machine(graph: Graph) -> None:
    assert said(graph, "tp = 8, dp = 4", "laptop") == ""


def test_a_cluster_that_is_too_small(graph: Graph) -> None:
    with pytest.raises(PlanError, match="E0610"):
        said(graph, "dp = 4, tp = 8", "h200x8")
