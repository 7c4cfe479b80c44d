"""docs/coming-from.md: each statement beside a word, a flag or a key of another system compiles, and options exist."""

import re
from pathlib import Path

import pytest
from typer.main import get_command

from bench.fuzz.trial import try_plan
from ssdsl.cli.app import app
from ssdsl.lang.parse import parse
from ssdsl.lower.lower import lower
from ssdsl.plan.interpret import interpret_all
from ssdsl.runtime.options import Training
from ssdsl.text.source import Source
from tests.captured import captured

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "coming-from.md").read_text("utf-8")
ROWS = [row for row in re.findall(r"^\| (.*?) \| (.*) \|$", PAGE.partition("## The loop")[0], re.M) if row[1] != "here"]
(TOGETHER,) = re.findall(r"```ssp\n(.*?)^```", PAGE, re.M | re.S)
OPTIONS = {o for name in ("run", "simulate") for p in get_command(app).commands[name].params for o in p.opts}
STATEMENT = re.compile(
    r"`((?:split|recompute|assign|prefetch|let|mesh|\w+_parallel\(|zb_h1\(|interleaved\(|one_f_one_b\()[^`]*)`"
)
FRAME = """\
use pipeline: one_f_one_b, interleaved, zb_h1
use tensor_parallel: tensor_parallel
use sequence_parallel: sequence_parallel, zigzag

param N = 2
param D = 2
param T = 2
param S = 2
param V = 2
param M = 2
param C = 2

"""
DEFAULTS = (  # what a plan says besides, as far as the statements of the table do not
    ("mesh", "mesh gpus(pp = S, dp = D, cp = C, tp = T)"),
    ("let stage", "let stage = balance(model, S)"),
    ("split model by batch", "split model by batch into dp, m = M"),
    ("assign", "assign stage[s] to gpus[pp = s] for s in 0..S"),
)
WITHOUT_STAGES = (DEFAULTS[2], ("assign", "assign model to gpus"))


def test_a_plan_with_many_flags_trains_as_one_device() -> None:
    outcome = try_plan(*captured("gpt:tiny,hidden=32,seq=16,vocab=64"), TOGETHER, Training(2, optimizer="sgd", lr=0.02))
    assert outcome.kind == "equal", outcome.text


@pytest.mark.parametrize(("flag", "here"), ROWS, ids=[flag for flag, _ in ROWS])
def test_what_the_table_says_for_a_flag_compiles(flag: str, here: str) -> None:
    """Each way to say it is a plan, no statement of which is without effect; options are those of the commands."""
    assert set(re.findall(r"(?<![\w,])--[a-z0-9-]+", here)) <= OPTIONS | {"--model"}
    graph = captured("mixtral:tiny" if "experts" in here else "gpt:tiny")[1]
    for way in re.split(r"; |, or |: stages", here):
        said = [s for s in STATEMENT.findall(way) if "..." not in s]
        if said:
            plan, warnings = interpret_all(parse(Source("flag.ssp", plan_of(said))), graph, {}, ROOT)
            lower(plan)
            assert {w.code for w in warnings} <= {"E0273"}, warnings  # a param of the frame that is not used


def plan_of(said: list[str]) -> str:
    """A whole plan that says this: its mesh first, then stages, then where they are; calls come last."""
    has_stages = not any(s.startswith("mesh") and "pp =" not in s for s in said)
    defaults = DEFAULTS if has_stages else WITHOUT_STAGES
    on_devices = [s for s in said if not s.endswith("to host")]  # where state lies says nothing of where operators run
    lines = said + [line for word, line in defaults if not any(s.startswith(word) for s in on_devices)]
    order = ["mesh", "let", "split", "tensor_parallel", "sequence_parallel", "recompute", "prefetch", "assign"]
    lines.sort(key=lambda line: next((n for n, word in enumerate(order) if line.startswith(word)), len(order)))
    return FRAME + "\n".join(lines) + "\n"
