"""`--json` of each command is what it was at revision 73fce42: each key with its type, and the simulated numbers."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ssdsl.cli.main import main
from ssdsl.model import module_to_graph
from ssdsl.model.graph import Graph
from ssdsl.model.load.model import Model
from ssdsl.run import launch as launching
from ssdsl.run.results import RunResult, read_result
from ssdsl.runtime.options import Training
from tests.cli.commands import commands
from tests.preloaded import Preloaded

KEPT = Path(__file__).parent
CALLS = dict(line.split(": ") for line in (KEPT / "calls.txt").read_text("utf-8").splitlines())
NEWER = {"search", "cache"}  # commands that the revision did not have
RANKED = {"sweep": ".best"}  # by the time of all devices now
FUSED = "--cluster v100x32", "--cluster v100x32,fuse=true"  # the kernels of that revision's GPUs are an option now
COUNTED = ("mfu", "model_flops", "device_flops_per_s")  # of the products that a step needs, and of nothing else
WAITS = (".waits_s", ".step_share")  # of lines: those for transfers count now
SIMULATED = ("simulate", "profiled", "show-schedule", "show-memory", "diff", "sweep")
ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
Call = Callable[[str], Any]


@pytest.fixture(scope="module", autouse=True)
def once(preloaded: Preloaded) -> Iterator[None]:
    """Models are captured once; `verify` and `run` have one run, of a single process that needs no torchrun."""
    graphs: dict[str, Graph] = {}
    trained: list[RunResult] = []

    def captured(model: Model) -> Graph:
        key = f"{model.name} {model.precision} {model.evaluation}"
        return graphs.get(key) or graphs.setdefault(key, capture(model))

    def launched(folder: Path, training: Training, *, out: Path, **how: Any) -> RunResult:
        if not trained:
            out.mkdir()
            words = [str(folder / "main.py"), *training.arguments(), "--out", str(out), "--dump"]
            subprocess.run([preloaded.executable, *words], check=True, env=os.environ | ALONE, timeout=120)
            trained.append(read_result(out, training.steps, range(1)))
        return trained[0]

    capture = module_to_graph.capture
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module_to_graph, "capture", captured)
        patch.setattr(launching, "launch", launched)
        yield


@pytest.fixture
def called(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """What a call prints; of a wrong one, what it says."""

    def call(name: str) -> Any:
        monkeypatch.chdir(KEPT)
        monkeypatch.setattr(sys, "argv", ["ssdsl", *CALLS[name].replace(*FUSED).split(), "--json"])
        with pytest.raises(SystemExit):
            main()
        printed = capfd.readouterr()
        return json.loads(printed.out or printed.err)

    return call


def kept(name: str) -> Any:
    return json.loads((KEPT / "json" / f"{name}.json").read_text("utf-8"))


def kinds(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Each key with what its values are; a key that some rows of a list lack is also absent."""
    match value:
        case dict():
            yield path, "object"
            for key, item in value.items():
                yield from kinds(item, f"{path}.{key}")
        case list():
            yield path, "list"
            rows = [row for row in value if isinstance(row, dict)]
            keys = dict.fromkeys(key for row in rows for key in row)
            yield from ((f"{path}[].{key}", "absent") for key in keys if any(key not in row for row in rows))
            for item in value:
                yield from kinds(item, f"{path}[]")
        case bool():
            yield path, "true or false"
        case int() | float():
            yield path, "number"
        case _:
            yield path, "null" if value is None else "text"


def numbers(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    match value:
        case dict():
            for key, item in value.items():
                yield from numbers(item, f"{path}.{key}")
        case list():
            for at, item in enumerate(value):
                yield from numbers(item, f"{path}[{at}]")
        case int() | float():
            yield path, value


def test_every_command_with_json_is_here() -> None:
    able = {name for name, command in commands() if any("--json" in p.opts for p in command.params)}  # type: ignore[attr-defined]
    assert able - NEWER == {name for name in able if any(words.startswith(name) for words in CALLS.values())}


@pytest.mark.parametrize("name", CALLS)
def test_it_is_what_it_was(called: Call, name: str) -> None:
    then, now = kept(name), called(name)
    before, after = set(kinds(then)), set(kinds(now))
    paths = {path for path, _ in before}
    assert before == {(path, kind) for path, kind in after if path in paths}
    if name.startswith(SIMULATED):
        expected, found = dict(numbers(then)), dict(numbers(now))
        expected = {path: n for path, n in expected.items() if not path.startswith(RANKED.get(name, "-"))}
        expected = {path: n for path, n in expected.items() if not path.endswith(WAITS)}
        expected = {path: n for path, n in expected.items() if not {*path.split(".")} & {*COUNTED}}
        assert {path: found.get(path) for path in expected} == pytest.approx(expected, rel=1e-9, abs=0)
