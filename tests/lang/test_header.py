"""The header of a plan: its version, and the options that commands take from it."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ssdsl.lang.header import Header, header_of
from ssdsl.lang.parse import parse
from ssdsl.plan.declarations import declarations
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Source

PLAN = """# ssdsl 1
# for: --model gpt:tiny -s S=4 --cluster=a100x1024
# A pipeline.

param S = 2
param M = 4
mesh gpus(pp = S)
let stage = balance(model, S)
split model by batch into m = M
assign stage[s] to gpus[pp = s] for s in 0..S
"""
NET = """import torch
def net():
    return torch.nn.Sequential(torch.nn.Linear(4, 4)), {"input": torch.ones(2, 4)}, {"input": ("batch", "in")}
"""


def run(words: list[str], folder: Path, said: str = "") -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "ssdsl", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, input=said, timeout=120)


def test_the_options_are_read() -> None:
    options = (("--model", "gpt:tiny"), ("--set", "S=4"), ("--cluster", "a100x1024"))
    assert header_of(Source("plan.ssp", PLAN)) == Header(options)
    assert declarations(parse(Source("plan.ssp", PLAN))).summary == "A pipeline."


@pytest.mark.parametrize(
    "text", ["", "# for: any model\n", "mesh gpus(dp = 2)\n# ssdsl 7\n", "# ssdsl is nice\n", "# for 2 devices\n"]
)
def test_other_comments_are_none(text: str) -> None:
    assert header_of(Source("plan.ssp", text)) == Header()


@pytest.mark.parametrize(
    ("line", "code"),
    [("# ssdsl 12", "E0129"), ("# for: --steps 3", "E0130"), ("# for: --model", "E0130"), ("# for: -m 'a", "E0130")],
)
def test_a_wrong_header_is_a_mistake_of_the_plan(line: str, code: str) -> None:
    with pytest.raises(PlanError, match=code):
        parse(Source("plan.ssp", f"{line}\n{PLAN}"))


@pytest.fixture
def shown(tmp_path: Path) -> Callable[..., dict[str, object]]:
    (tmp_path / "plan.ssp").write_text(PLAN)

    def check(*words: str) -> dict[str, object]:
        done = run(["check", "plan.ssp", "--json", *words], tmp_path)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        return {"model": found["model"], **found["params"]}

    return check


def test_commands_take_them_and_the_command_line_wins(shown: Callable[..., dict[str, object]]) -> None:
    assert shown() == {"model": "gpt:tiny", "S": 4, "M": 4}
    assert shown("--set", "S=2", "-s", "M=2") == {"model": "gpt:tiny", "S": 2, "M": 2}
    assert shown("-m", "gpt:small") == {"model": "gpt:small", "S": 4, "M": 4}


def test_a_file_runs_only_with_consent(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "plan.ssp").write_text("# for: --model net.py:net\nmesh gpus(dp = 2)\nassign model to gpus\n")
    refused = run(["prove", "plan.ssp"], tmp_path)
    assert refused.returncode == 1 and "E0131" in refused.stderr
    told = refused.stderr.split("give it: ")[1].split()
    assert told == ["--model", "net.py:net"]
