"""The forward of any program is one by itself: legal, proved, without a gradient, and its loss is that of the step."""

from pathlib import Path

import pytest

from ssdsl.compile import compile_evaluation, compile_plan, compile_source
from ssdsl.ir.function import Backward
from ssdsl.ir.program import Compute, Free, Program, Start, Wait
from ssdsl.lower.lower import lower
from ssdsl.lower.stages import Held
from ssdsl.model.graph import Graph, Origin
from ssdsl.model.load import load
from ssdsl.model.load.model import Model, computing
from ssdsl.model.module_to_graph import capture
from ssdsl.plan.neighbours.carry_over import carry_over
from ssdsl.plan.plan import Phase
from ssdsl.prove.prove import prove
from ssdsl.record import replace
from ssdsl.run.in_process.run_in_process import program_of, run_in_process
from ssdsl.runtime.options import Training
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Source
from ssdsl.workspace import Compiled
from tests.captured import captured
from tests.run.evaluating import evaluate

ROOT = Path(__file__).parent.parent.parent
PLANS = sorted(p.stem for folder in ("examples", "tests/verify/plans") for p in (ROOT / folder).glob("*.ssp"))


@pytest.fixture(scope="module")
def given() -> tuple[Model, Graph]:
    return captured("gpt:tiny,hidden=32,seq=16,vocab=64,dropout=0.1")


@pytest.fixture(scope="module")
def plain() -> tuple[Model, Graph]:
    return captured("gpt:tiny")


def _compiled(given: tuple[Model, Graph], plan: str, **params: int) -> Compiled:
    folder = next(f for f in (ROOT / "examples", ROOT / "tests/verify/plans") if (f / f"{plan}.ssp").exists())
    return compile_plan(folder / f"{plan}.ssp", given[1], params)


def forward_of(compiled: Compiled) -> Program:
    """The forward of the graph that trains, with what its evaluation would keep of the plan."""
    held = Held(compiled.program.params, compiled.program.flats)
    return lower(carry_over(compiled.plan, compiled.plan.graph), held=held, trains=False)


@pytest.mark.thinned(9)
@pytest.mark.parametrize("plan", PLANS)
def test_it_is_proved(plain: tuple[Model, Graph], plan: str) -> None:
    try:
        compiled = _compiled(plain, plan)
    except PlanError:
        pytest.skip("the plan is not for this model")
    program = forward_of(compiled)
    proof = prove(program)
    assert proof.failures == () and proof.gradients == 0
    _check_bare(program)


def _check_bare(program: Program) -> None:
    assert all(f.backward is Backward.NONE for f in program.functions)
    assert not any(s.recompute for f in program.functions for s in f.sections)
    for role in program.roles:
        assert all(isinstance(a, Compute | Start | Wait | Free) for a in role.actions)
        assert all(task.phase is Phase.FORWARD for task in role.computes())


@pytest.mark.parametrize(
    ("plan", "params"), [("zero", {"Z": 3}), ("zero_bubble", {}), ("interleaved", {}), ("megatron", {})], ids=str
)
def test_its_loss_is_that_of_the_step(given: tuple[Model, Graph], plan: str, params: dict[str, int]) -> None:
    """Dropout draws the numbers of the first step."""
    compiled = _compiled(given, plan, **params)
    alone = replace(compiled, program=forward_of(compiled))
    finished = run_in_process(program_of(compiled.program, given[0]), Training(1, optimizer="sgd", lr=0.1))
    assert evaluate(compiled, alone, given[0], steps=0).losses == [finished.losses[0]] * 2


def test_it_computes_in_the_precision_of_training() -> None:
    model = replace(load("gpt:tiny,layers=2"), precision="bf16")
    training = compile_plan(ROOT / "examples" / "megatron.ssp", capture(computing(model)), {})
    graph = compile_evaluation(training, model).program.graph
    assert {v.dtype for v in graph.of(Origin.WEIGHT)} == {"bfloat16"}


@pytest.mark.parametrize("split", ["batch", "seq"])
def test_what_only_training_has(split: str) -> None:
    """A weight that the evaluation does not read, and a buffer whose axis is two dimensions in training alone."""
    model = load(f"{ROOT}/tests/models/scored.py:followed")
    text = (
        f"mesh gpus(dp = 2)\nsplit model by {split} into dp\nassign model to gpus\nsplit model.weights by row into dp\n"
    )
    training = compile_source(Source("plan.ssp", text), capture(model), {}, None)
    evaluation = compile_evaluation(training, model)
    assert evaluation.proof.failures == ()
    sizes = [compiled.program.graph.values["seen"].sizes for compiled in (training, evaluation)]
    assert sizes == [((4, 2),), ((8,),)]
    assert {p.weight for p in evaluation.program.params} == {p.weight for p in training.program.params}
