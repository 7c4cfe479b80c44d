"""What all tests share: goldens, rewritten by `pytest --update-golden`; a last line that says what was left out."""

import functools
import gc
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from itertools import combinations
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests.preloaded import Preloaded
from tests.processor_time import ProcessorTime

# Tensors are small and processors few: a process per processor, a thread each, in the commands that tests run too.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("SSDSL_COMPILER", "aot_eager_decomp_partition")  # which needs no C++ compiler

# as Hypothesis itself does where CI is set: a run is the same everywhere
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.load_profile("repeatable")

STARTED = pytest.StashKey[float]()
LEFT_OUT = pytest.StashKey[int]()  # slow tests that -m deselects
STARTS_PROCESSES = {"checkpoint", "run"}
STARTS_PYTHON = {"ssdsl.discover.discover", "ssdsl.run.launch", "ssdsl.cluster.measure"}
MADE = 500_000  # objects that may be cycles nobody holds any more


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the goldens with what the tests find")
    parser.addoption("--processor-time", action="store_true", help="say what folders and tests take of a processor")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[STARTED], config.stash[LEFT_OUT] = time.monotonic(), 0
    if config.getoption("--processor-time"):
        config.pluginmanager.register(ProcessorTime())
    gc.disable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what `thinned(n)` and `covering` leave out as slow, before slow tests are deselected."""
    marked: dict[tuple[str, str], list[pytest.Item]] = {}
    for item in items:
        for mark in ("thinned", "covering"):
            if item.get_closest_marker(mark) is not None:
                marked.setdefault((mark, item.nodeid.partition("[")[0]), []).append(item)
    for (mark, _), cases in marked.items():
        if mark == "thinned":
            quick = {*range(0, len(cases), cases[0].get_closest_marker(mark).args[0])}  # type: ignore[union-attr]
        else:
            quick = cover([tuple(map(repr, case.callspec.params.values())) for case in cases])  # type: ignore[attr-defined]
        for number, case in enumerate(cases):
            if number not in quick:
                case.add_marker(pytest.mark.slow)
    if "PYTEST_XDIST_WORKER" in os.environ:
        longest_first(items)


def longest_first(items: list[pytest.Item]) -> None:
    """Sorts files, so that the processes of a run, which take one after another, end together: those with most tests
    first. A test of a folder that starts processes waits for them, and counts for ten."""
    weights: Counter[Path] = Counter()
    for item in items:
        weights[item.path] += 10 if STARTS_PROCESSES & {*item.path.parts} else 1
    items.sort(key=lambda item: -weights[item.path])


def cover(cases: Sequence[tuple[str, ...]]) -> set[int]:
    """The numbers of few cases that have each value of each parameter that any case has; of three parameters or more,
    each pair of values. Greedy: next comes the case with most that is new, the first of equals."""
    size = 1 if len(cases[0]) < 3 else 2
    has = [{*combinations(enumerate(case), size)} for case in cases]
    left, chosen = set().union(*has), set[int]()
    while left:
        best = max(range(len(cases)), key=lambda n: len(has[n] & left))
        chosen.add(best)
        left -= has[best]
    return chosen


def pytest_collection_finish() -> None:
    """The collector is off, and when it is called it does not traverse what is here now."""
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """The collector is off while a test runs. Between tests, once they have made enough, it looks through what is new.
    What it leaves is in use, by caches most of all: it stays, and is not traversed again. Else each collection would go
    through all captured graphs."""
    result = yield
    if gc.get_count()[0] > MADE:
        gc.collect()
        gc.freeze()
    gc.disable()  # a test may have turned it on
    return result


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    for item in items:
        item.config.stash[LEFT_OUT] += item.get_closest_marker("slow") is not None


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process of xdist, which selects tests for itself, tells the one that speaks. What there is now ends with the
    process: pytest and the interpreter would look through it several times more."""
    gc.freeze()
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output["left_out"] = session.config.stash[LEFT_OUT]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """All of them select the same."""
    node.config.stash[LEFT_OUT] = getattr(node, "workeroutput", {}).get("left_out", 0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    minutes, seconds = divmod(round(time.monotonic() - config.stash[STARTED]), 60)
    if count := config.stash[LEFT_OUT]:
        tests = f"{count} slow test{'s' if count > 1 else ''}"
        terminalreporter.write_line(f"{tests} left out; make test-all runs them; took {minutes}:{seconds:02}")


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Graphs and tables are not kept in the user's folder, nor read from it. The processes of a run share them."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(shared / "cache"))
        if shared != base:
            patch.setenv("SSDSL_TEST_GRAPHS", str(shared / "graphs"))  # of tests/captured.py
        yield


@pytest.fixture(autouse=True, scope="module")
def quick_comparisons() -> Iterator[None]:
    """Plans of one model are compared with one training on a single device, whose rounding is measured in one other run
    instead of three: it allows less. As ever, more are run before a plan is called wrong.

    Modules that test the measurement itself, or show it, have a fixture of this name that does nothing.
    """
    if "ssdsl.run.verify.verify" not in sys.modules:  # nothing here compares
        yield
        return
    from tests.single_device import single_device

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ssdsl.run.verify.verify.SingleDevice", single_device)
        patch.setattr("ssdsl.run.verify.error_growth.RUNS", 1)
        yield


@pytest.fixture(scope="session")
def preloaded() -> Iterator[Preloaded]:
    """An interpreter with torch loaded."""
    with closing(Preloaded()) as found:
        yield found


@pytest.fixture
def python(preloaded: Preloaded) -> str:
    """The command `python`, of processes that have torch loaded."""
    return preloaded.executable


@pytest.fixture
def python_of_ranks(python: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The same; torchrun starts its ranks by it, too."""
    monkeypatch.setenv("PYTHON_EXEC", python)
    return python


@pytest.fixture(autouse=True, scope="module")
def quick_starts(preloaded: Preloaded) -> Iterator[None]:
    """The processes that these modules start have torch loaded: experiments with operators, torchrun, and those that
    measure the machine. Tests of experiments have a fixture of this name that does nothing."""
    with pytest.MonkeyPatch.context() as patch:
        for name in STARTS_PYTHON & sys.modules.keys():  # nothing here uses the others
            patch.setattr(f"{name}.sys", preloaded)
        yield


@pytest.fixture(autouse=True, scope="module")
def quick_commands() -> Iterator[None]:
    """Commands and their options are read from the functions of the app once, not by each call of a command."""
    if "typer" not in sys.modules:  # nothing here calls a command
        yield
        return
    from typer import main

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(main, "get_command", functools.cache(main.get_command))
        yield


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[Path, str], None]:
    """Compare a text with a file, or write it there."""

    def compare(path: Path, text: str) -> None:
        if request.config.getoption("--update-golden"):
            path.write_text(text, "utf-8")
        assert path.exists(), f"{path.name} is missing: pytest --update-golden writes it"
        assert path.read_text("utf-8") == text

    return compare
