"""The last line of a run says how many slow tests were left out, whether one process ran the others or several."""

import os
import re
import shutil
import subprocess
import sys
from itertools import combinations, product
from pathlib import Path

import pytest

from tests.conftest import cover

TESTS = """\
import pytest

@pytest.mark.slow
@pytest.mark.parametrize("x", [1, 2])
def test_slow(x): pass

@pytest.mark.thinned(3)
@pytest.mark.parametrize("x", [1, 2, 3])
def test_thinned(x): pass

@pytest.mark.covering
@pytest.mark.parametrize("x", [1, 2, 3])
@pytest.mark.parametrize("y", [1, 2])
def test_covering(x, y): pass

def test_quick(): pass
"""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["-m", "not slow"], r"^7 slow tests left out; make test-all runs them; took \d+:\d\d$"),
        (["-m", "not slow", "--numprocesses", "2"], r"^7 slow tests left out; make test-all runs them; took \d+:\d\d$"),
        ([], r"12 passed"),
    ],
)
def test_left_out(tmp_path: Path, options: list[str], said: str) -> None:
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path)
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  slow\n  thinned\n  covering\n")
    command = [sys.executable, "-m", "pytest", "--rootdir", str(tmp_path), *options]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}  # of what conftest.py imports
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert re.search(said, done.stdout, re.MULTILINE), done.stdout
    assert ("left out" in done.stdout) == bool(options)


def test_a_cover_has_each_value_of_two_parameters_and_each_pair_of_three() -> None:
    two, three = ([*product(*lists)] for lists in (("abcd", "xyz"), ("ab", "xyz", "pq")))
    chosen = [two[n] for n in cover(two)]
    assert len(chosen) == 4 and {a for a, _ in chosen} == {*"abcd"} and {b for _, b in chosen} == {*"xyz"}
    chosen = [three[n] for n in cover(three)]
    assert len(chosen) < 10
    for one, other in combinations(range(3), 2):
        assert {(c[one], c[other]) for c in chosen} == {(c[one], c[other]) for c in three}


def test_a_cover_of_cases_that_are_no_product_has_what_they_have() -> None:
    cases = [("a", "x"), ("a", "y"), ("b", "x"), ("b", "z")]
    assert {value for n in cover(cases) for value in cases[n]} == {*"abxyz"}
