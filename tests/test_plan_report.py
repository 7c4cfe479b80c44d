"""`ssdsl.compile_plan` and `%%ssp`: plans in scripts and notebooks."""

from pathlib import Path
from typing import Any

import pytest

import ssdsl
from ssdsl.text.diagnostic import PlanError

PLAN = """# for: --model gpt:tiny,layers=2 --set S=2
use pipeline: gpipe
param S = 1
mesh gpus(pp = S)
let stage = balance(model, S)
split model by batch into m = 4
assign stage[s] to gpus[pp = s] for s in 0..S
gpipe(stage, 4)
"""


def test_a_plan_is_compiled_shown_and_simulated(tmp_path: Path) -> None:
    (tmp_path / "plan.ssp").write_text(PLAN)
    found = ssdsl.compile_plan(tmp_path / "plan.ssp")
    assert (found.plan.devices, found.plan.params, found.warnings) == (2, {"S": 2}, ())
    assert len(found.program.roles) == 2 and "gpus_pp1" in str(found) and "<pre>" in found._repr_html_()
    step = found.simulate("a100x4")
    assert step.report.step_s > 0 and "bubble" in str(step) and "<iframe" in step._repr_html_()
    assert ssdsl.compile_plan(tmp_path / "plan.ssp", "gpt:tiny", params={"S": 4}).plan.devices == 4


def test_mistakes_are_exceptions(tmp_path: Path) -> None:
    (tmp_path / "plan.ssp").write_text("mesh gpus(dp = 2)\nassign model to gpu\n")
    with pytest.raises(PlanError, match="gpu"):
        ssdsl.compile_plan(tmp_path / "plan.ssp", "gpt:tiny,layers=2")
    with pytest.raises(ValueError, match="no model"):
        ssdsl.compile_plan(tmp_path / "plan.ssp")
    (tmp_path / "plan.ssp").write_text("# for: --model net.py:net\nmesh gpus(dp = 2)\nassign model to gpus\n")
    with pytest.raises(ValueError, match="would run"):
        ssdsl.compile_plan(tmp_path / "plan.ssp")


class Shell:
    """The part of a notebook's shell that an extension uses."""

    def __init__(self) -> None:
        self.magics: dict[str, Any] = {}

    def register_magic_function(self, function: Any, kind: str, name: str) -> None:
        self.magics[f"{kind} {name}"] = function


def test_a_cell_is_a_plan() -> None:
    usage_error = pytest.importorskip("IPython.core.error").UsageError
    shell = Shell()
    ssdsl.load_ipython_extension(shell)
    ssp = shell.magics["cell ssp"]
    cell = PLAN.partition("\n")[2]
    shown = ssp("--model gpt:tiny,layers=2 -s S=2 --cluster a100x4", cell)
    assert shown.plan.plan.devices == 2 and "<iframe" in shown._repr_html_()
    own = ssp("", PLAN)
    assert own.step is None and own.plan.plan.params == {"S": 2}
    assert ssp("--set S=1", PLAN).plan.plan.params == {"S": 1}, "what the line says wins"
    with pytest.raises(usage_error, match=r"error\[E0201\]"):
        ssp("--model gpt:tiny", "mesh gpus(dp = 2)\nassign modl to gpus\n")
    with pytest.raises(usage_error, match="no model"):
        ssp("", "mesh gpus(dp = 2)\n")
