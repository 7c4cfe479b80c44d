"""A first plan is proved for its model, and so is each line that it says to try next."""

import re
from pathlib import Path

import pytest

from ssdsl.compile import compile_source
from ssdsl.first_plan.dims import dims_lines
from ssdsl.first_plan.write import FirstPlan, first_plan, uncommented
from ssdsl.lang.format import format_script
from ssdsl.lang.header import header_of
from ssdsl.lang.parse import parse
from ssdsl.matrix.trials import Trials
from ssdsl.model.graph import Graph
from ssdsl.text.source import Source
from ssdsl.workspace import Workspace
from tests.captured import captured, graph_of
from tests.cli.commands import call

MODEL = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, inner=50, classes=7):
        super().__init__()
        self.a, self.b = nn.Linear(30, inner), nn.Linear(inner, classes)

    def forward(self, x, y):
        return nn.functional.cross_entropy(self.b(self.a(x).relu()), y)


class Number(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        return (self.a * x - 1) ** 2


class Vector(nn.Module):
    def __init__(self):
        super().__init__()
        self.all = nn.Sequential(nn.Linear(7, 11), nn.Tanh(), nn.Linear(11, 13), nn.Tanh(), nn.Linear(13, 1))

    def forward(self, x):
        return self.all(x).square().sum()


def net():
    return Net(), {"x": torch.randn(6, 30), "y": torch.randint(7, (6,))}


def odd():
    return Net(), {"x": torch.randn(5, 30), "y": torch.randint(7, (5,))}


def number():
    return Number(), {"x": torch.tensor(3.0)}, {"x": ()}


def vector():
    return Vector(), {"x": torch.randn(7)}, {"x": ("feature",)}
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "mine.py"
    path.write_text(MODEL)
    return path


def written(spec: str, graph: Graph, devices: int) -> FirstPlan:
    return first_plan(Trials(spec, Workspace(graph)), devices, spec, spec, "mine.ssp", True)


def next_lines(text: str) -> list[str]:
    """The comments that are statements."""
    return re.findall(r"(?m)^# ((?:split|recompute|precision) [^:\n]*)$", text.partition("# What to try next")[2])


SPECS = ("gpt:tiny,layers=2,hidden=32,seq=16,vocab=64", "mixtral:tiny", "swin:tiny,image=32", "resnet:tiny")


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("devices", [2, 4])
def test_it_is_proved_with_each_line_to_try(spec: str, devices: int) -> None:
    graph = graph_of(spec)
    plan = written(spec, graph, devices)
    compiled = compile_source(Source("mine.ssp", plan.text), graph, {}, None)
    assert compiled.plan.devices == devices and not compiled.warnings
    lines = next_lines(plan.text)
    assert "recompute model" in lines and [*dict.fromkeys(line for one in plan.next for line in one.lines)] == lines
    for one in plan.next:
        text = uncommented(plan.text, one.lines)
        assert text != plan.text
        other = compile_source(Source("mine.ssp", text), graph, {}, None)
        assert not other.warnings, one


@pytest.mark.parametrize("spec", SPECS[:2])
def test_it_is_as_fmt_leaves_it_and_names_its_model(spec: str) -> None:
    source = Source("mine.ssp", written(spec, graph_of(spec), 4).text)
    assert format_script(parse(source), source) == source.text
    assert header_of(source).given("--model") == spec
    assert max(map(len, source.text.splitlines())) <= 120


@pytest.mark.parametrize(
    ("function", "devices", "line"),
    [
        ("net", 4, "split model by ffn into tp"),
        ("odd", 4, "split model by batch into dp = [2, 1, 1, 1]"),
        ("vector", 2, "split model by "),
        ("number", 4, "split model.weights by row into dp"),
        ("net", 1, "assign model to gpus"),
    ],
)
def test_models_with_odd_sizes_without_batch_or_dimensions(
    models: Path, function: str, devices: int, line: str
) -> None:
    spec = f"{models}:{function}"
    _, graph = captured(spec)
    plan = written(spec, graph, devices)
    compiled = compile_source(Source("mine.ssp", plan.text), graph, {}, None)
    assert compiled.plan.devices == devices
    assert any(one.startswith(line) for one in plan.text.splitlines()), plan.text


def test_dimensions_stand_there_with_their_divisors() -> None:
    lines = [*dims_lines(graph_of(SPECS[0]), 4)]
    rows = {line.split()[0]: line for line in lines[1:]}
    assert re.match(r"batch +8 +1 +2, 4 +8 ", rows["batch"])
    assert re.match(r"heads +4 +2 +2, 4 +- ", rows["heads"])
    assert "cannot be split" in rows["head_dim.1"]


def test_the_command_writes_a_file_that_others_take_without_a_model(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODEL)
    (tmp_path / "plans").mkdir()
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = call("new", "mine.py:net", "-o", "plans/first.ssp", folder=tmp_path, **cache)
    assert done.returncode == 0, done.stderr
    assert "next: ssdsl check plans/first.ssp" in done.stdout
    text = (tmp_path / "plans" / "first.ssp").read_text()
    assert "# for: --model ../mine.py:net\n" in text
    assert call("prove", "plans/first.ssp", folder=tmp_path, **cache).returncode == 0  # without a question
    again = call("new", "mine.py:net", "-o", "plans/first.ssp", folder=tmp_path, **cache)
    assert again.returncode == 1 and "E0125" in again.stderr and "--force" in again.stderr
    (tmp_path / "plans" / "first.ssp").write_text("# mine\n")
    call("new", "mine.py:net", "-o", "plans/first.ssp", folder=tmp_path, **cache)
    assert (tmp_path / "plans" / "first.ssp").read_text() == "# mine\n"
    assert call("new", "mine.py:net", "-o", "plans/first.ssp", "--force", folder=tmp_path, **cache).returncode == 0
    assert (tmp_path / "plans" / "first.ssp").read_text() == text


def test_without_a_name_the_file_is_called_as_the_model(tmp_path: Path) -> None:
    assert call("new", "gpt:tiny,layers=2", "--devices", "2", folder=tmp_path).returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["gpt.ssp"]
    wrong = call("new", "nowhere.py:net", folder=tmp_path)
    assert wrong.returncode == 1 and [path.name for path in tmp_path.iterdir()] == ["gpt.ssp"]
