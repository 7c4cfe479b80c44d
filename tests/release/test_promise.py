"""docs/promise.md: what users name is still there, and what 0.1.0 wrote is still read.

`kept/interface.json` lists words of the language, commands with their options, keys of JSON, codes and names of Python.
What is added needs no change of it; `pytest --update-golden` writes what there is today, at a release.
"""

import inspect
import json
import re
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import ssdsl
from ssdsl.cli.commands.explain import all_diagnostics
from ssdsl.lang.nodes import SOFT_STATEMENTS
from ssdsl.lang.parser.indentation import KEYWORDS
from ssdsl.model.graph_file import BadGraphFile, read_graph
from ssdsl.model.graph_text import graph_text
from tests.cli.commands import ROOT, call, commands

KEPT = Path(__file__).parent / "kept"
PROMISE = (ROOT / "docs" / "promise.md").read_text("utf-8")
OWN = f"--model {KEPT / 'net.py'}:net"
PRINTING = {  # a call of commands that print JSON and start no process
    "models": "models",
    "plans": "plans",
    "ops": "ops softmax",
    "clusters": "clusters",
    "check": f"check data_parallel {OWN}",
    "prove": f"prove data_parallel {OWN}",
    "show dims": f"show data_parallel dims {OWN}",
    "show graph": f"show data_parallel graph {OWN}",
    "show ops": f"show data_parallel ops {OWN}",
    "show tasks": f"show data_parallel tasks {OWN}",
    "show comm": f"show data_parallel comm {OWN}",
    "show program": f"show data_parallel program {OWN}",
    "simulate": f"simulate data_parallel {OWN} --cluster a100x8",
    "sweep": f"sweep data_parallel {OWN} --set D=2,4",
    "reshard": f"reshard data_parallel data_parallel {OWN}",
    "search": f"search data_parallel {OWN} --devices 1..2",
    "checkpoint show": f"checkpoint show {KEPT / 'runs'}",
}


def keys(found: Any, at: str = "") -> Iterator[str]:
    """The keys of JSON, each with those that lead to it; of params, which a plan names, none."""
    if isinstance(found, list):
        for item in found:
            yield from keys(item, f"{at}[]")
    elif isinstance(found, dict):
        for key, item in found.items():
            yield f"{at}.{key}"
            if key not in ("params", "numbers", "state"):
                yield from keys(item, f"{at}.{key}")


def python() -> dict[str, list[str]]:
    """The names of the package, with the parameters of what can be called."""
    things = {name: getattr(ssdsl, name) for name in dir(ssdsl)}
    return {name: [*inspect.signature(thing).parameters] if callable(thing) else [] for name, thing in things.items()}


def printed(folder: Path) -> Iterator[tuple[str, Any]]:
    for command, words in PRINTING.items():
        done = call(*words.split(), "--json", folder=folder)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        yield command, json.loads(done.stdout)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return dict(printed(tmp_path_factory.mktemp("printed")))


@pytest.fixture(scope="module")
def interface(outputs: dict[str, Any]) -> dict[str, list[str]]:
    words = {*KEYWORDS, *(statement.keyword for statement in SOFT_STATEMENTS)}
    options = {f"{name} {o}" for name, command in commands() for p in command.params for o in p.opts}  # type: ignore[attr-defined]
    plans = outputs["plans"]
    params = {f"{plan['plan']} {name}" for plan in plans["plans"] for name in plan["params"]}
    functions = {f"{file['file']}: {name}" for file in plans["library"] for name in file["functions"]}
    named = {f"{name} {parameter}".strip() for name, its in python().items() for parameter in ("", *its)}
    return {
        "words of the language": sorted(words),
        "commands and options": sorted(options),
        "shipped plans and params": sorted(params | {plan["plan"] for plan in plans["plans"]}),
        "functions of the library": sorted(functions),
        "codes": all_diagnostics(),
        "python": sorted(named),
        "json": sorted({f"{command} {key}" for command, found in outputs.items() for key in keys(found)}),
    }


def test_no_name_is_gone(interface: dict[str, list[str]], request: pytest.FixtureRequest) -> None:
    file = KEPT / "interface.json"
    if request.config.getoption("--update-golden"):
        file.write_text(json.dumps(interface, indent=1, ensure_ascii=False) + "\n", "utf-8")
    kept = json.loads(file.read_text("utf-8"))
    assert kept.keys() <= interface.keys()
    gone = {of: sorted({*names} - {*interface[of]}) for of, names in kept.items()}
    assert not any(gone.values()), {of: names for of, names in gone.items() if names}


def test_the_page_has_the_names_of_python() -> None:
    block = PROMISE.partition("all in `ssdsl`:")[2].partition("##")[0]
    assert sorted(re.findall(r"`(\w+)`", block)) == sorted(dir(ssdsl))


def test_the_page_has_the_versions() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    (torch_range,) = re.findall(r"torch>=([\d.]+),<2\.(\d+)", " ".join(project["dependencies"]))
    assert f"{torch_range[0]} to 2.{int(torch_range[1]) - 1}," in PROMISE
    (lowest,) = re.findall(r">=([\d.]+),<6", project["optional-dependencies"]["models"][0])
    assert f"| {lowest} and newer 5.x |" in PROMISE
    assert f"| {project['requires-python'].removeprefix('>=')} and newer |" in PROMISE


@pytest.mark.parametrize(
    "command", [name for name in PRINTING if name != "clusters"]
)  # whose keys are those of its file
def test_the_page_of_json_has_the_keys(command: str, outputs: dict[str, Any]) -> None:
    """Those of the whole, or of the items of a list."""
    page = (ROOT / "docs" / "json.md").read_text("utf-8")
    if command == "simulate":
        told = page.partition("## A simulated step")[2]
    else:
        (told,) = (row for row in page.splitlines() if re.match(rf"\|[^|]*`{command}`[^|]*\|", row))
    found = outputs[command]
    first = found[0] if isinstance(found, list) else found
    assert {*first} <= {*re.findall(r"`(\w+)`", told)}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A checkpoint of 0.1.0, after two steps on two devices."""
    shutil.copytree(KEPT / "runs", tmp_path / "runs")
    return tmp_path


def test_a_checkpoint_of_0_1_0_is_read(runs: Path) -> None:
    assert call("checkpoint", "to-torch", "runs", "net.pt", "--optim", folder=runs).returncode == 0
    found = torch.load(runs / "net.pt", weights_only=True)
    expected = json.loads((KEPT / "weights.json").read_text())
    assert {name: tensor.tolist() for name, tensor in found["model"].items()} == expected
    assert found["steps"] == 2 and found["optim"]["state"]


def test_a_checkpoint_of_0_1_0_is_resumed_under_another_plan(runs: Path) -> None:
    words = f"run data_parallel {OWN} --set D=1 --steps 4 --resume runs --json"
    done = call(*words.split(), folder=runs)
    assert done.returncode == 0, done.stderr
    (rank,) = json.loads(done.stdout)
    assert rank["first"] == 2
    assert rank["losses"] == pytest.approx(json.loads((KEPT / "losses.json").read_text())[2:], rel=1e-5)


def test_a_graph_of_0_1_0_is_read_or_refused() -> None:
    """Never misread: if the form has not changed, its text is the one that it had."""
    try:
        graph, _ = read_graph(KEPT / "net.graph")
    except BadGraphFile as refused:
        assert re.search("another version of ssdsl|it is of version", str(refused))
    else:
        assert graph_text(graph).rstrip() == (KEPT / "net.graph.txt").read_text("utf-8").rstrip()


def test_the_citation() -> None:
    """What the Citation File Format 1.2.0 requires, and today's version."""
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert cited["cff-version"] == "1.2.0" and cited["type"] == "software"
    assert {"message", "title", "authors", "license"} <= cited.keys()
    assert str(cited["version"]) == ssdsl.__version__
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["version"] == ssdsl.__version__ and project["license"] == cited["license"]
    for work in (cited, *cited["references"]):
        assert {"type", "title", "authors"} <= work.keys()
        assert all("name" in author or {"family-names", "given-names"} == author.keys() for author in work["authors"])


def test_the_security_page() -> None:
    """It says of each kind of file that ssdsl reads whether it is executed, and has no address that nobody reads."""
    page = (ROOT / "SECURITY.md").read_text("utf-8")
    for word in ("header", "checkpoint", "`.graph`", "weights_only", "compiled program", "E0131", "advisory"):
        assert word in page
    assert "@" not in page and f"{ssdsl.__version__.rpartition('.')[0]}.x" in page
