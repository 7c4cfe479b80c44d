"""Which plans the tests compile for which models, without compiling them: `python -m bench.same.recorded FOLDER`.

It prints a JSON object a line. The lists of tests/examples are read, and the first lines of tests/ir/programs. Those of
tests/verify and tests/prove run with a capture and a compiler that only write down what they are given. So there is no
second list. With --texts also the plans that are texts in tests; they are written into the folder.
"""

import argparse
import importlib
import io
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

import bench.fuzz.trial
from bench.fuzz.trial import Outcome
from ssdsl.lang.shipped import plan_path

ROOT = Path.cwd()
MODELS = ROOT / "tests" / "models"
PROGRAMS = ROOT / "tests" / "ir" / "programs"
CAPTURES = {"tests.verify.conftest": "captured", "tests.prove.conftest": "graph_of"}
FIXTURES = {"program", "compiled"}  # which compile a plan's file
MARK = "# model: "


class Recorder:
    """A plugin of pytest that makes tests say what they compile; `found` has lines, each once."""

    def __init__(self, folder: Path, texts: bool) -> None:
        self.folder, self.texts = folder, texts
        self.found: dict[str, None] = {}
        self.written: dict[str, Path] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """Before the modules of tests import these names."""
        for module, capture in CAPTURES.items():
            names = vars(importlib.import_module(module))
            assert {capture, "compile_plan"} <= names.keys(), f"{module} compiles in another way now"
            names[capture] = _named if capture == "graph_of" else lambda spec: (_named(spec), _named(spec))
            names["compile_plan"] = self.compile_plan
        vars(bench.fuzz.trial)["try_plan"] = self.try_plan

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Those that may compile a plan in these ways."""
        has_text = [i for i in items if self.texts and hasattr(i.module, "try_plan")]
        items[:] = [i for i in items if FIXTURES & {*i.fixturenames} or i in has_text]

    def compile_plan(self, path: Path, model: str, settings: Mapping[str, int], *_: Any) -> None:
        if path.is_relative_to(ROOT):
            self.record(path, model, settings)
        elif self.texts:
            self.record(self.file(path.read_text("utf-8")), model, settings)
        pytest.skip("written down")

    def try_plan(self, _: str, model: str, text: str, *__: Any) -> Outcome:
        self.record(self.file(text), model, {})
        return Outcome("equal")

    def file(self, text: str) -> Path:
        """A file with this text, called as the test that has it."""
        if text not in self.written:
            test = Path(os.environ["PYTEST_CURRENT_TEST"].partition("::")[0]).stem
            path = self.written[text] = self.folder / f"{test}_{len(self.written)}.ssp"
            path.write_text(text, "utf-8")
        return self.written[text]

    def record(self, plan: Path, model: str, settings: Mapping[str, int]) -> None:
        self.found[json.dumps({"plan": str(plan), "model": model, "settings": settings})] = None


def _named(spec: str) -> str:
    """A model as the command line names it; a file without a folder is one of tests/models."""
    return str(MODELS / spec) if ".py:" in spec else spec


def lists() -> Iterator[tuple[Path, str, Mapping[str, int]]]:
    """The plans that name their model, and those of examples."""
    for path in sorted(PROGRAMS.glob("*.ssp")):
        first, *_ = path.read_text("utf-8").splitlines()
        yield path, f"{PROGRAMS.with_name('models.py')}:{first.removeprefix(MARK)}", {}
    statements = importlib.import_module("tests.examples.test_statements")
    for plan, model, settings in (*statements.RUNS, *statements.MORE):
        yield plan_path(plan), model, settings
    for plan, (model, each) in importlib.import_module("tests.examples.test_papers").PLANS.items():
        yield from ((plan_path(plan), model, settings) for settings in each)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--texts", action="store_true")
    options = parser.parse_args()
    recorder = Recorder(options.folder, options.texts)
    for one in lists():
        recorder.record(*one)
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        status = pytest.main(["-q", "-p", "no:cacheprovider", "tests/verify", "tests/prove"], [recorder])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):  # a test has no program to look into
        raise SystemExit(f"the tests could not be read\n{said.getvalue()}")
    print("\n".join(recorder.found))


if __name__ == "__main__":
    main()
