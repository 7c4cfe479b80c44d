"""What `check` and the REPL say that a plan leaves open."""

from pathlib import Path

import pytest

from ssdsl.lang.read import read_source
from ssdsl.plan.model_index import index_model
from ssdsl.show.tables.open_params import open_params
from ssdsl.text.source import Source
from tests.captured import graph_of

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ("data_parallel", "D in 2, 1: at most 1 plan on 2 devices"),
        ("pipeline", "M in 4, 1, 2, 8: at most 4 plans on 2 devices; where stages are cut and which task runs when"),
        ("v_shaped", "; where stages are cut"),
        ("papers/sketch_stages", "; where stages are cut, on how many devices each runs and which task runs when"),
    ],
)
def test_what_is_open(plan: str, said: str) -> None:
    path = EXAMPLES / f"{plan}.ssp"
    found = open_params(read_source(path), EXAMPLES, index_model(graph_of("gpt:tiny")), 2)
    assert found.startswith("open to `ssdsl search`: ") and found.endswith(said)


def test_nothing_is() -> None:
    source = Source("closed.ssp", "mesh gpus(dp = 2)\nsplit model by batch into dp\nassign model to gpus\n")
    assert not open_params(source, None, index_model(graph_of("gpt:tiny")), 2)


def test_what_the_user_has_set_is_not_open() -> None:
    """As in a search with the same `--set`: the plan that is checked is one of those that are counted."""
    source, index = read_source(EXAMPLES / "co_shard.ssp"), index_model(graph_of("gpt:tiny"))
    assert open_params(source, EXAMPLES, index, 1, {"D": 1}).endswith(
        "search`: C in 2, 1, 4: at most 3 plans on 1 device"
    )


@pytest.mark.parametrize(("most", "said"), [(3, "more than 3 plans on 2 devices"), (4, "at most 4 plans on 2 devices")])
def test_many_plans_are_not_counted_to_the_end(most: int, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ssdsl.show.tables.open_params.MOST", most)
    path = EXAMPLES / "pipeline.ssp"
    assert f": {said}; " in open_params(read_source(path), EXAMPLES, index_model(graph_of("gpt:tiny")), 2)
