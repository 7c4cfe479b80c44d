"""`program.json` says which part of each tensor of a batch a role needs; `prepare` is given that part alone."""

import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ssdsl.codegen.write import program_files
from ssdsl.compile import compile_source
from ssdsl.ir.function import Conversion
from ssdsl.model.graph import Graph
from ssdsl.model.load import load
from ssdsl.prove.prove import prove
from ssdsl.record import replace
from ssdsl.runtime.layout.cut import Piece
from ssdsl.text.source import Source
from tests.captured import graph_of

Inputs = dict[str, dict[str, Any]]
GPT = "gpt:tiny,layers=3"
STAGES = """
mesh gpus(pp = 3, dp = 2)

let stage = balance(model, 3)

split model by batch into dp
assign stage[s] to gpus[pp = s] for s in 0..3
"""


@pytest.fixture(scope="module")
def graph() -> Graph:
    return graph_of(GPT)


@pytest.fixture(scope="module")
def table(graph: Graph) -> Callable[[str], dict[str, Any]]:
    def of(plan: str) -> dict[str, Any]:
        compiled = compile_source(Source("plan.ssp", plan), graph, {}, Path())
        found: dict[str, Any] = json.loads(program_files(compiled.program)["program.json"])
        return found

    return of


def _inputs(table: dict[str, Any], role: str) -> Inputs:
    return {i["name"]: i for r in table["roles"] if r["name"] == role for i in r["inputs"]}


def test_a_batch_has_names_and_shapes(table: Callable[[str], dict[str, Any]]) -> None:
    found = table("mesh gpus(dp = 2)\n\nassign model to gpus\n")["inputs"]
    assert found["input_ids"] == {"shape": [8, 64], "dtype": "int64", "axes": ["batch", "seq"]}
    assert list(found) == list(load(GPT).batches[0])


def test_stages_need_what_they_read(table: Callable[[str], dict[str, Any]]) -> None:
    found = table(STAGES)
    assert list(_inputs(found, "gpus_pp0")) == ["input_ids"]
    assert list(_inputs(found, "gpus_pp1")) == []
    assert list(_inputs(found, "gpus_pp2")) == ["labels"]


def test_labels_that_are_shifted_are_read_by_the_part(table: Callable[[str], dict[str, Any]]) -> None:
    """They are padded and cut, in the layout of the plan, before the loss reads them."""
    labels = _inputs(table(STAGES), "gpus_pp2")["labels"]
    assert labels == {"name": "labels", "shape": [8, 64], "takes": [["dp", 0, 1, 2]]}


@pytest.mark.parametrize(("split", "parts"), [("dp", [0, 4]), ("m = 2, dp", [0, 1, 4, 5])])
def test_the_parts_are_a_batch(table: Callable[[str], dict[str, Any]], split: str, parts: list[int]) -> None:
    """Parts in time of a device are not always one run of the batch."""
    plan = f"mesh gpus(dp = 2)\n\nsplit model by batch into {split}\nassign model to gpus\n"
    given = _inputs(table(plan), "gpus")["input_ids"]
    held = []
    for at in range(2):
        takes = tuple((dim, outer, n, at) for _, dim, outer, n in given["takes"])
        held.append(Piece("input_ids", tuple(given["shape"]), takes).places()[0].tolist())
    assert held[0][: len(parts)] == parts if split != "dp" else held[0] == [0, 1, 2, 3]
    assert sorted(itertools.chain(*held)) == list(range(8))


def test_readers_in_several_layouts_have_a_common_part(tmp_path: Path) -> None:
    """One layer is split over both axes, another over one of them: the part is what both have in common."""
    model = f"{Path(__file__).parent.parent / 'prove' / 'models.py'}:read_twice"
    plan = """
mesh gpus(dp = 2, cp = 2)

split model by batch into dp
split model["a"] by seq into cp
assign model to gpus
"""
    program = compile_source(Source("plan.ssp", plan), graph_of(model), {}, tmp_path).program
    (role,) = json.loads(program_files(program)["program.json"])["roles"]
    assert [i["takes"] for i in role["inputs"]] == [[["dp", 0, 1, 2]]]
    (given,) = program.prologues[0].given
    assert math.prod(s.known for s in given.shape) == 2 * 6 * 8


def test_blocks_of_a_volume_come_with_what_their_windows_read() -> None:
    """A part of the depth with the plane beyond its face, and a part of the batch: each device loads no more."""
    plan = """
mesh gpus(dp = 2, d = 2)

split model by batch into dp
split model by depth into d
assign model to gpus
"""
    program = compile_source(Source("plan.ssp", plan), graph_of("cosmoflow"), {}, Path()).program
    volume = _inputs(json.loads(program_files(program)["program.json"]), "gpus")["volume"]
    assert volume["takes"] == [["dp", 0, 1, 2], ["d", 2, 1, [[[0, 9]], [[7, 16]]]]]
    assert [v.elements for v in program.prologues[0].given] == [4 * 4 * 9 * 16 * 16, 4 * 4]
    assert not any(isinstance(i, Conversion) for i in program.prologues[0].body)
    (given, *others), body = program.prologues[0].given, program.prologues[0]
    place = given.type.layout.places[1]
    shifted = replace(place, digit=replace(place.digit, at=(((0, 9),), ((6, 15),))))
    wrong = replace(given, type=replace(given.type, layout=given.type.layout.replacing(1, shifted)))
    broken = replace(program, prologues=(replace(body, given=(wrong, *others)),))
    assert prove(program).failures == () and prove(broken).failures
