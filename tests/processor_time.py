"""`pytest --processor-time`: the seconds of a processor that each folder and the dearest tests take, with those of the
processes that they start. Unlike `--durations` it is the same on a busy machine."""

import os
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

SHOWN = 20  # tests
NAME = "processor seconds"
BEGAN = pytest.StashKey[float]()


class ProcessorTime:
    """Measures each test where it runs, and adds up where it is reported: with xdist these are two processes."""

    def __init__(self) -> None:
        self.of_tests = Counter[str]()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        item.stash[BEGAN] = now()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[Any]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "teardown":
            report.user_properties.append((NAME, now() - item.stash[BEGAN]))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties if report.when == "teardown" else ():
            if name == NAME:
                self.of_tests[report.nodeid] += float(str(value))  # type: ignore[assignment]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section(NAME)
        for name, seconds in (*by_folder(self.of_tests).most_common(), *self.of_tests.most_common(SHOWN)):
            terminalreporter.write_line(f"{seconds:8.1f}  {name}")


def now() -> float:
    """The processor time of this process and of its children. Of those that run, also that of their own children that
    have ended: one is the server of tests/preloaded, which starts most processes."""
    return sum(os.times()[:4]) + sum(map(_taken, Path("/proc/self/task").glob("*/children")))


def _taken(children: Path) -> float:
    """The seconds that these processes and their ended children have taken: words 14 to 17 of each one's `stat`."""
    ticks = 0
    for process in _text(children).split():
        ticks += sum(map(int, _text(Path("/proc", process, "stat")).rpartition(")")[2].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # it has ended; or this is no Linux
        return ""


def by_folder(of_tests: Counter[str]) -> Counter[str]:
    """The seconds of the folders in tests, and of all together."""
    found = Counter[str]()
    for name, seconds in of_tests.items():
        found["/".join(name.partition("::")[0].split("/")[:2])] += seconds
        found["all"] += seconds
    return found
