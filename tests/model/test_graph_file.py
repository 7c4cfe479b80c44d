"""A graph in a file is the graph that was written; what is no graph is refused; nothing in a file is executed."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ssdsl.model.graph import Graph
from ssdsl.model.graph_file import BadGraphFile, NotData, read_graph, write_graph
from ssdsl.model.graph_text import graph_text
from ssdsl.model.load import load
from ssdsl.model.load.model import Model
from ssdsl.model.module_to_graph import capture
from ssdsl.model.ops.op import Op, PartKernel
from ssdsl.record import replace
from tests.captured import captured_family, graph_of
from tests.model.rule_cases import CASES

HERE = Path(__file__).parent


def through_file(graph: Graph, folder: Path) -> Graph:
    path = folder / "model.graph"
    path.write_bytes(write_graph(graph, {"model": graph.name}))
    found, header = read_graph(path)
    assert header["model"] == graph.name
    return found


def assert_same(found: Graph, graph: Graph) -> None:
    assert graph_text(found) == graph_text(graph)
    assert found == graph and found.storages == graph.storages
    for one, other in zip(found.operators, graph.operators, strict=True):
        assert one.observed == other.observed
        assert one.row is other.row or (one.row.name, one.row.text) == (other.row.name, other.row.text)


@pytest.mark.thinned(9)
@pytest.mark.parametrize("family", CASES)
def test_every_operator_goes_through_a_file(family: str, tmp_path: Path) -> None:
    _, graph = captured_family(family)
    assert_same(through_file(graph, tmp_path), graph)


@pytest.mark.parametrize("spec", ["moe_gpt", "unet3d"])
def test_models_go_through_a_file(spec: str, tmp_path: Path) -> None:
    graph = graph_of(spec)
    assert_same(through_file(graph, tmp_path), graph)


def test_constants_keep_their_bits(tmp_path: Path) -> None:
    class Net(nn.Module):
        steps: torch.Tensor
        angle: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)
            self.register_buffer("steps", torch.tensor([1.5, -0.0, 3.0, 1e-3], dtype=torch.bfloat16))
            self.register_buffer("angle", torch.tensor([1 + 2j, 0, -1j, 3]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (self.fc(x) * self.steps * self.angle.abs()).sum()

    graph = capture(Model("net", Net(), ({"x": torch.zeros(2, 4)},), {"x": ("batch", "feature")}))
    found = through_file(graph, tmp_path)
    assert found.constants == graph.constants
    assert {c.dtype for c in found.constants.values()} == {"bfloat16", "complex64"}
    assert found.constants["steps"].numbers() == pytest.approx([1.5, 0.0, 3.0, 1e-3], rel=1e-2)


def rewritten(path: Path, change: dict[str, str]) -> Path:
    """The file with other members."""
    with zipfile.ZipFile(path) as before:
        members = {name: before.read(name) for name in before.namelist()}
    with zipfile.ZipFile(path, "w") as after:
        for name, data in (members | {name: text.encode() for name, text in change.items()}).items():
            after.writestr(name, data)
    return path


HEADER = {"format": "ssdsl graph", "version": 2, "fields": {"Dim": ["name"]}}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"header.json": "[]"}, "no file that `ssdsl capture` has written"),
        ({"header.json": json.dumps(HEADER | {"version": 99})}, "of version 99"),
        ({"header.json": json.dumps(HEADER)}, "captured by another version"),
        ({"graph.json": '[1, ["os.system", 0]]'}, "damaged"),
        ({"graph.json": '[["tuple", 7]]'}, "damaged"),
        ({"graph.json": '["a"]'}, "what it holds is no graph"),
        ({"graph.json": "{"}, "damaged"),
        ({"graph.json": "[]"}, "damaged"),
    ],
)
def test_what_is_no_graph_is_refused(change: dict[str, str], reason: str, tmp_path: Path) -> None:
    path = tmp_path / "model.graph"
    path.write_bytes(write_graph(capture(load("tests/models/tied.py:tied")), {}))
    with zipfile.ZipFile(path) as file:
        header = json.loads(file.read("header.json"))
    header.pop("checksum")
    with pytest.raises(BadGraphFile, match=reason):
        read_graph(rewritten(path, {"header.json": json.dumps(header), **change}))


def test_a_file_that_was_changed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.graph"
    path.write_bytes(write_graph(capture(load("tests/models/tied.py:tied")), {"sizes": (1, 2.5), "model": "[/a]"}))
    read_graph(path)
    with zipfile.ZipFile(path) as file:
        header, nodes = json.loads(file.read("header.json")), json.loads(file.read("graph.json"))
    number = next(i for i, node in enumerate(nodes) if type(node) is int)
    other = [*nodes[:number], 10**9, *nodes[number + 1 :]]
    for change in ({"graph.json": json.dumps(other)}, {"header.json": json.dumps(header | {"model": "other"})}):
        whole = path.read_bytes()
        with pytest.raises(BadGraphFile, match="changed after"):
            read_graph(rewritten(path, change))
        path.write_bytes(whole)
    header.pop("checksum")  # as an earlier version wrote it
    read_graph(rewritten(path, {"header.json": json.dumps(header)}))


def test_a_file_of_other_bytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.graph"
    for data in (b"", b"PK\x03\x04 and no more", b"\x80\x04K\x01."):
        path.write_bytes(data)
        with pytest.raises(BadGraphFile):
            read_graph(path)


def test_functions_of_a_users_row_are_not_data() -> None:
    graph = capture(load("tests/models/tied.py:tied"))

    def with_row(**fields: Any) -> Graph:
        row = Op("own::op", "a -> a", module="own", **fields)
        operators = tuple(replace(o, row=row) for o in graph.operators)
        return replace(graph, operators=operators)

    kernel = PartKernel(("self", 0), "own.part({self})", (), (), lambda reader: None)
    for fields, word in (({"text": lambda given: "own()"}, "`text`"), ({"kernel": kernel}, "`kernel.saved`")):
        with pytest.raises(NotData, match=word):
            write_graph(with_row(**fields), {})
    assert write_graph(with_row(text="own.op({self})", flops=lambda call: 1), {})
