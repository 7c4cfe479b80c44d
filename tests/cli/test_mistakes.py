"""`ssdsl check` tells all mistakes of a plan, and changes it as their helps say: a person says so, or a script."""

import json
from pathlib import Path

import pytest

from tests.cli.commands import Done, call

WRONG = """\
# for: --model gpt:tiny
param D = 2
mesh gpus(dp = D
split model by batchh into dp, m = 2
asign model to gpus
recompute model["lm_hed"]
"""
CODES = ["E0114", "E0110", "E0204", "E0240"]
RIGHT = WRONG.replace("= D", "= D)").replace("batchh", "batch").replace("asign", "assign").replace("lm_hed", "lm_head")


def run(*words: str) -> Done:
    return call(*words, folder=Path())


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("p.ssp").write_text(WRONG, "utf-8")
    return Path("p.ssp")


def test_all_mistakes_are_told(plan: Path) -> None:
    done = run("check", "p.ssp")
    assert done.returncode == 1 and [code for code in CODES if code in done.stderr] == CODES


def test_a_plan_is_changed_as_its_helps_say(plan: Path) -> None:
    done = run("check", "p.ssp", "--fix", "--yes")
    assert done.returncode == 0 and "proved" in done.stdout
    assert '+recompute model["lm_head"]' in done.stderr and plan.read_text("utf-8") == RIGHT


def test_nothing_is_changed_that_nobody_wants(plan: Path) -> None:
    done = run("check", "p.ssp", "--fix")
    assert done.returncode == 2 and "--yes` makes these changes" in " ".join(done.stderr.replace("│", " ").split())
    assert plan.read_text("utf-8") == WRONG
    assert run("check", "p.ssp", "--yes").returncode == 2


def test_an_error_that_names_no_change_stays(plan: Path) -> None:
    plan.write_text("mesh gpus(dp = 2)\nassign model to gpus\nlet x = 1 // 0\n", "utf-8")
    done = run("check", "p.ssp", "--fix", "--yes", "--model", "gpt:tiny")
    assert done.returncode == 1 and "E0212" in done.stderr


def test_a_script_gets_to_a_plan_that_proves(plan: Path) -> None:
    for _ in range(len(CODES)):
        done = run("check", "p.ssp", "--json")
        if not done.returncode:
            break
        errors = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
        edit = next(edit for error in errors for edit in error["edits"])
        lines = plan.read_text("utf-8").split("\n")
        start, end = edit["line"] - 1, edit["end"]["line"] - 1
        inside = lines[start][: edit["column"] - 1] + edit["text"] + lines[end][edit["end"]["column"] - 1 :]
        plan.write_text("\n".join([*lines[:start], inside, *lines[end + 1 :]]), "utf-8")
    assert run("prove", "p.ssp").returncode == 0
    assert plan.read_text("utf-8") == RIGHT
