"""Parameters and functions of plans, known without a model; and the plans that come with ssdsl."""

from pathlib import Path

import pytest

from ssdsl.lang.assets import assets_folder, library_files
from ssdsl.lang.parse import parse
from ssdsl.lang.read import read_source
from ssdsl.model.graph import Graph
from ssdsl.plan.declarations import ParamDecl, declarations, params
from ssdsl.plan.interpret import interpret_all
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Source
from tests.captured import graph_of

EXAMPLES = sorted(assets_folder("examples").glob("*.ssp"))
MODELS = {  # of plans that not every transformer can have
    "context_parallel": "gpt:tiny",
    "experts": "moe_gpt:tiny",
    "spatial": "cosmoflow",
    "splitbrain": "vgg",
    "tiles": f"{Path(__file__).parent.parent / 'models' / 'spatial.py'}:chain",
}


def test_params() -> None:
    script = parse(Source("plan.ssp", 'param S = 4 "stages"\nparam M = max(2 * S, 3)\nlet x = modle\n'))
    assert params(script) == (ParamDecl("S", 4, "stages"), ParamDecl("M", 8, ""))


def test_overrides(plan) -> None:
    text = "param S = 4\nparam M = 2 * S\nmesh gpus(pp = M)\nassign model to gpus\n"
    assert plan(text, S=3).params == {"S": 3, "M": 6}
    assert plan(text, M=5).devices == 5
    assert plan.mistakes(text, N=5) == ["E0225"]


@pytest.mark.parametrize("text", ["param N = model", "let x = 1\nparam N = x", 'param N = "a"', "param N = Q"])
def test_a_default_is_a_number(text: str) -> None:
    with pytest.raises(PlanError):
        params(parse(Source("plan.ssp", text)))


@pytest.mark.parametrize("path", [*EXAMPLES, *library_files()], ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_what_comes_with_ssdsl(path: Path, graph: Graph) -> None:
    source = read_source(path)
    script = parse(source)
    found = declarations(script)
    assert source.text.startswith(f"# {path.name}: ") and found.summary
    assert found.is_plan or found.functions
    if found.is_plan:
        if path.stem in MODELS:
            graph = graph_of(MODELS[path.stem])
        plan, warnings = interpret_all(script, graph, {}, path.parent)
        assert not warnings and plan.devices in (2, 4)
        ones = {p.name: 2 if p.name == "M" else 1 for p in found.params}
        assert interpret_all(script, graph, ones, path.parent)[0].devices == 1


def test_library() -> None:
    names = {f.split("(")[0] for path in library_files() for f in declarations(parse(read_source(path))).functions}
    assert names >= {"data_parallel", "tensor_parallel", "sequence_parallel", "gpipe", "one_f_one_b"}


def test_a_param_in_a_condition(plan) -> None:
    assert plan.mistakes("if true:\n    param N = 2\nmesh gpus(dp = 2)\nassign model to gpus\n") == ["E0227"]
