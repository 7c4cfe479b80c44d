"""The process that runs the commands of a checkout, here one whose `ssdsl` is a few lines; what it answered is kept."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.same.checkouts import Answer, Worker
from bench.same.compare import Side
from bench.same.kept import Kept, unpack
from bench.same.pairs import Pair
from bench.same.run import chosen

MAIN = """
import os, sys

def main():
    command, *rest = sys.argv[1:]
    os.write(1, b"past sys.stdout")
    print(command, *rest)
    print("a warning", file=sys.stderr)
    match command:
        case "die":
            os._exit(7)
        case "refuse":
            sys.exit(1)
        case "crash":
            raise ValueError
"""


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    package = tmp_path / "checkout" / "ssdsl"
    (package / "cli").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "cli" / "__init__.py").touch()
    (package / "cli" / "main.py").write_text(MAIN)
    found = Worker(tmp_path / "checkout", tmp_path / "work")
    yield found
    found.close()


def answer(worker: Worker, *arguments: str) -> Answer:
    worker.ask([*arguments])
    return worker.answer()


def test_one_process_answers_many_commands(worker: Worker) -> None:
    assert answer(worker, "show", "plan") == Answer(0, "show plan\n", "a warning\n")
    first = worker.process
    assert answer(worker, "refuse").status == 1
    assert worker.process is first and not worker.is_worn


@pytest.mark.parametrize("command", ["die", "crash"])
def test_after_a_death_a_fresh_process_goes_on(worker: Worker, command: str) -> None:
    found = answer(worker, command)
    assert found.status == -1 and found.is_crash
    assert worker.is_worn
    worker.stop()
    assert answer(worker, "show").status == 0


def test_a_closed_one_does_not_start_again(worker: Worker) -> None:
    worker.close()
    with pytest.raises(RuntimeError):
        worker.ask(["show"])


def test_answers_are_kept_for_the_same_text(tmp_path: Path) -> None:
    plan = tmp_path / "mine.ssp"
    plan.write_text("mesh gpus(dp = 2)\n")
    pair, asked, kept = Pair(plan, "gpt", ()), {"check": ["check", "mine.ssp"]}, Kept("c0ffee", tmp_path / "kept")
    side = Side({"check": Answer(0, "{}", "")}, {"role.py": b"a", "evaluate/role.py": b"a"})
    assert kept.load(pair, asked) is None
    kept.save(pair, asked, side)
    assert kept.load(pair, asked) == side
    assert kept.load(pair, {"check": ["check", "other.ssp"]}) is None
    assert Kept("other", tmp_path / "kept").load(pair, asked) is None
    plan.write_text("mesh gpus(dp = 4)\n")
    assert kept.load(pair, asked) is None
    unpack(side.files, tmp_path / "program")
    assert (tmp_path / "program" / "evaluate" / "role.py").read_bytes() == b"a"


def test_pairs_are_chosen_by_words() -> None:
    pairs = [Pair(Path(f"{plan}.ssp"), model, (("D", 2),)) for plan in "ab" for model in ("gpt", "tests/x.py:swin")]
    assert [str(p) for p in chosen(pairs, ["a ", "D=2"], 1)] == ["a gpt D=2", "a x.py:swin D=2"]
    assert chosen(pairs, None, 3) == [pairs[0], pairs[3]]
    with pytest.raises(SystemExit):
        chosen(pairs, ["c "], 1)
