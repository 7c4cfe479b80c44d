"""A compiled folder is a package with two programs in it; several folders live in one process, whatever their names."""

import importlib
import importlib.util
import json
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from ssdsl.codegen.write import write_program
from ssdsl.compile import compile_evaluation, compile_source
from ssdsl.model.load import load
from ssdsl.model.module_to_graph import capture
from ssdsl.runtime import __file__ as runtime
from ssdsl.text.source import Source

ROOT = Path(__file__).parent.parent.parent
SCORED = f"{ROOT / 'tests' / 'models' / 'scored.py'}:net"
PLANS = {
    "a": "mesh gpus(dp = 2)\n\nsplit model by batch into dp\nassign model to gpus\n",
    "b-4": "mesh gpus(pp = 4)\n\nassign model to gpus[pp = 0]\n",
}


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a program for each plan."""
    folder = tmp_path_factory.mktemp("work") / "build"
    model = load(SCORED)
    graph = capture(model)
    for name, text in PLANS.items():
        compiled = compile_source(Source(f"{name}.ssp", text), graph, {}, None)
        evaluation = compile_evaluation(compiled, model, ["logits"])
        write_program(compiled.program, model, folder / name, compiled.source, evaluation.program)
    return folder


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """Modules and paths as they were."""
    modules, path = dict(sys.modules), list(sys.path)
    yield
    for name in sys.modules.keys() - modules.keys():
        del sys.modules[name]
    sys.path[:] = path


def test_two_programs_on_one_state(build: Path) -> None:
    trains, evaluates = (json.loads((build / "a" / where / "program.json").read_text()) for where in (".", "evaluate"))
    assert (trains["trains"], evaluates["trains"]) == (True, False)
    assert (trains["outputs"], [o["name"] for o in evaluates["outputs"]]) == ([], ["logits"])
    assert evaluates["outputs"][0]["takes"] == [["dp", 0, 1, 2]]
    for one, other in zip(trains["roles"], evaluates["roles"], strict=True):
        assert [f["weights"] for f in one["flats"]] == [f["weights"] for f in other["flats"]]
        assert one["others"] == other["others"]
    assert {p.name for p in (build / "a" / "evaluate").iterdir()} == {"program.json", "role_gpus.py"}


def test_all_of_the_runtime_is_there(build: Path) -> None:
    source = Path(runtime).parent
    wanted = {p.relative_to(source) for p in source.rglob("*.py")}
    copied = build / "a" / "runtime"
    assert {p.relative_to(copied) for p in copied.rglob("*.py")} == wanted


def test_packages_in_the_runtime_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ssdsl.codegen import write

    package = tmp_path / "package"
    code = ("__init__.py", "deep/__init__.py", "deep/er/__init__.py", "deep/er/x.py")
    for name in (*code, "data/y.py", "__pycache__/z.pyc"):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(name)
    write._copy(package, tmp_path / "copy")
    found = {str(p.relative_to(tmp_path / "copy")) for p in (tmp_path / "copy").rglob("*") if p.is_file()}
    assert found == set(code)


def test_two_folders_in_one_process(build: Path) -> None:
    sys.path.insert(0, str(build.parent))
    tables = []
    for name in PLANS:
        importlib.import_module(f"build.{name}")
        program = importlib.import_module(f"build.{name}.runtime.program.program")
        tables.append(program.CompiledProgram.read(build / name).table)
        assert Path(program.__file__).parents[2] == build / name
    assert [t.world_size for t in tables] == [2, 4]


def test_main_leaves_names_to_the_user(build: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's own `runtime` stays the user's, and main's is the one of its folder."""
    own = ModuleType("runtime")
    monkeypatch.setitem(sys.modules, "runtime", own)
    monkeypatch.syspath_prepend(str(build / "b-4"))
    space = runpy.run_path(str(build / "b-4" / "main.py"), run_name="loaded")
    assert sys.modules["runtime"] is own
    assert str(build / "b-4") not in sys.path
    inside = importlib.import_module(f"{space['NAME']}.runtime.main")
    assert Path(str(inside.__file__)).parent.parent == build / "b-4"
