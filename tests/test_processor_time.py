"""`--processor-time` counts what a test and the processes that it starts take of a processor."""

import subprocess
import sys
from collections import Counter

from tests.processor_time import by_folder, now

SPINS = "import time\nwhile time.process_time() < 0.3: pass"
HAS_A_CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-IS', '-c', {SPINS!r}]); print(); input()"


def test_folders_are_added_up() -> None:
    found = by_folder(Counter({"tests/run/test_a.py::test_b": 2, "tests/run/deep/test_c.py::test_d[a::b]": 3}))
    assert found == {"all": 5, "tests/run": 5}


def test_a_process_that_has_ended_counts_once() -> None:
    before = now()
    subprocess.run([sys.executable, "-IS", "-c", SPINS], check=True)
    assert 0.2 <= now() - before < 3


def test_what_the_child_of_a_server_took_counts_while_the_server_runs() -> None:
    before = now()
    words = [sys.executable, "-IS", "-c", HAS_A_CHILD]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        server.stdout.readline()
        assert now() - before >= 0.2
