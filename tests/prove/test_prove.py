"""Programs that the compiler makes are proved; what a failure says is a golden."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from ssdsl.ir.function import Conversion
from ssdsl.ir.program import Compute, Program
from ssdsl.plan.plan import Phase
from ssdsl.prove.prove import prove
from ssdsl.record import replace
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.render import render
from tests.captured import captured
from tests.prove.conftest import ROOT, graph_of
from tests.prove.mutations import instructions
from tests.prove.running import runs_wrong

ERRORS = ROOT / "tests" / "errors"
PLANS = sorted(p.stem for folder in ("examples", "tests/verify/plans") for p in (ROOT / folder).glob("*.ssp"))


@pytest.mark.thinned(9)
@pytest.mark.parametrize("model", ["gpt:tiny", "swin"])
@pytest.mark.parametrize("plan", PLANS)
def test_what_is_compiled_is_proved(compiled: Callable[..., Program], plan: str, model: str) -> None:
    try:
        program = compiled(plan, model)
    except PlanError:
        pytest.skip("the plan is not for this model")
    proof = prove(program)
    assert proof.failures == ()
    assert proof.gradients > 0


@pytest.mark.parametrize(("plan", "model"), [("spatial", "cosmoflow"), ("spatial", "unet3d"), ("splitbrain", "vgg")])
def test_plans_of_networks_of_images_are_proved(compiled: Callable[..., Program], plan: str, model: str) -> None:
    assert prove(compiled(plan, model)).failures == ()


@pytest.mark.parametrize(
    ("plan", "params"),
    [
        ("megatron", {"D": 2, "T": 4, "S": 4, "M": 2}),
        ("megatron", {"D": 4, "T": 1, "S": 1, "M": 2}),
        ("sequence_parallel", {}),
        ("zero", {"Z": 1}),
        ("zero", {"Z": 2}),
        ("zero", {"Z": 3}),
        ("data_parallel", {"D": 4}),
    ],
    ids=str,
)
def test_plans_of_other_sizes_are_proved(compiled: Callable[..., Program], plan: str, params: dict[str, int]) -> None:
    assert prove(compiled(plan, "gpt", **params)).failures == ()


def test_a_failure_says_where(compiled: Callable[..., Program], golden: Callable[[Path, str], None]) -> None:
    program = compiled("megatron")
    wrong = next(
        become(replace(instr, forward=()))
        for _, instr, become in instructions(program)
        if isinstance(instr, Conversion) and any(not step.in_time for step in instr.forward)
    )
    first = prove(wrong).failures[0]
    text = render(first).replace(str(ROOT) + "/", "")
    text = re.sub(r"(modeling_\w+\.py):\d+", r"\1:LINE", text)  # another transformers has it elsewhere
    golden(ERRORS / "E0451.err", text + "\n")


def test_statistics_change_in_the_models_order(compiled: Callable[..., Program]) -> None:
    program = compiled("two_calls", f"{ROOT / 'tests' / 'fuzz' / 'buffers.py'}:batch_norm_twice")
    assert prove(program).failures == ()
    role = program.roles[0]
    calls = [f.number for f in program.functions if any(op.operator.startswith("batch_norm") for op in f.operators())]
    first, second = ([a for a in role.computes() if (a.function, a.phase) == (n, Phase.FORWARD)] for n in calls)
    assert len(first) == len(second) == 2

    def wanted(one: Compute, other: Compute) -> set[object]:
        """What the proof wants where two tasks change places."""
        swapped = {one: other, other: one}
        changed = replace(role, actions=tuple(swapped.get(action, action) for action in role.actions))
        return {f.wanted for f in prove(replace(program, roles=(changed, *program.roles[1:]))).failures}

    assert all("the model's order" in wanted(first[k], second[k]) for k in (0, 1))
    assert "the model's order" not in wanted(first[0], first[1])  # parts of one call may come in any order


def test_the_graph_is_not_changed(compiled: Callable[..., Program]) -> None:
    before = graph_of("gpt:tiny")
    prove(compiled("megatron"))
    assert graph_of("gpt:tiny") is before


def test_prologues_of_one_device_keep_their_parts_apart(compiled: Callable[..., Program]) -> None:
    """A name stands for the same part in all prologues that a device runs; two parts under one name went wrong."""
    model = f"{ROOT / 'tests' / 'prove' / 'models.py'}:read_twice"
    assert runs_wrong(compiled("two_prologues", model), captured(model)[0]) == ""
