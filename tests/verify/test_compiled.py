"""Programs with compiled kernels train as one device does, in process; torch compiles without C++ here."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bench.fuzz.trial import try_plan
from ssdsl.ir.function import OpPart
from ssdsl.ir.program import Kernels, Program
from ssdsl.lang.parse import parse
from ssdsl.lang.shipped import example_plans
from ssdsl.lower.lower import lower
from ssdsl.plan.interpret import interpret_all
from ssdsl.runtime.kernels import compiled as kernels
from ssdsl.runtime.options import Training
from ssdsl.text.source import Source
from tests.verify.conftest import HERE, NARROW, captured, plan_path

ALONE = "mesh gpus(one = 1)\nassign model to gpus\n"
UNEQUAL = "mesh gpus(one = 1)\nsplit model by batch into m = [5, 3]\nassign model to gpus\n"
TWO_AXES = """\
mesh gpus(dp = 2, tp = 2)
split model by wide into tp
split model by narrow into dp
assign model to gpus
"""
RECOMPUTED = "mesh gpus(dp = 2)\nsplit model by batch into dp, m = 2\nrecompute model\nassign model to gpus\n"
MIXTURE = "mixtral:tiny,hidden=32,heads=4,ffn=32,layers=2,seq=8,vocab=64"
LONGER = "gpt:tiny,hidden=32,seq=16,vocab=64,layers=8"
CASES = [
    pytest.param(
        f"{NARROW['gpt']},dropout=0.1", "megatron", id="tensor parallel, stages, dropout", marks=pytest.mark.slow
    ),
    pytest.param(NARROW["gpt"], "zero_bubble", id="backward in halves"),
    pytest.param(NARROW["gpt"], "zero", id="gathered weights"),
    pytest.param(NARROW["gpt"], RECOMPUTED, id="recomputed", marks=pytest.mark.slow),
    pytest.param(NARROW["gpt"], UNEQUAL, id="unequal parts", marks=pytest.mark.slow),
]
PLANS: dict[str, tuple[str, dict[str, int]]] = {  # all examples, and the plans of this folder
    "across": ("gpt", {}),
    "breadth_first": (LONGER, {}),
    "co_shard": ("gpt", {}),
    "context_parallel": ("gpt", {}),
    "data_parallel": ("swin", {}),
    "eager": (LONGER, {"S": 4, "M": 4}),
    "experts": (MIXTURE, {}),
    "half_batch": ("gpt", {}),
    "halves": ("swin", {"M": 2}),
    "halves_everywhere": ("gpt", {"T": 1, "D": 2, "Z": 2}),
    "heads_and_ffn": ("einsums.py:einsums", {}),
    "interlaced": ("gpt", {}),
    "interlaced_loss": ("gpt", {}),
    "interleaved": (LONGER, {}),
    "megatron": ("swin", {"D": 2, "S": 1, "M": 2}),
    "nested_state": ("gpt", {}),
    "one_f_one_b": (LONGER, {}),
    "pipeline": ("swin", {}),
    "portions": ("gpt", {}),
    "recomputed": ("convnet.py:unet", {}),
    "sequence_parallel": ("gpt", {}),
    "sketch": (LONGER, {"S": 2, "M": 2}),
    "spatial": ("cosmoflow:tiny", {}),
    "splitbrain": ("vgg:tiny", {}),
    "spread": ("gpt", {}),
    "stages": ("convnet.py:unet", {}),
    "swapped": ("tied.py:tied", {}),
    "tensor_parallel": ("swin", {}),
    "terapipe": ("gpt", {}),
    "three_f_one_b": ("recycling.py:recycling", {"S": 2, "M": 4}),
    "tied_stages": ("tied.py:tied", {}),
    "tiles": ("resnet:tiny,statistics=4", {"D": 1, "T": 2}),
    "ulysses": ("gpt", {}),
    "unequal_meshes": ("gpt", {}),
    "unequal_stages": ("gpt", {}),
    "uneven": ("swin", {}),
    "v_shaped": (LONGER, {"H": 1, "M": 8}),
    "vocab_and_ffn": ("tied.py:tied", {}),
    "zero": ("swin", {"Z": 3}),
    "zero_bubble": (LONGER, {"S": 4, "M": 4, "H": 2}),
}


def compiled(model: str, text: str) -> Program:
    plan, _ = interpret_all(parse(Source("plan.ssp", text)), captured(model)[1], {}, HERE)
    return lower(plan, kernels=Kernels.COMPILED)


def places(program: Program) -> Iterator[tuple[OpPart, bool]]:
    """Each operator, and whether it is in a compiled run."""
    for section in (s for f in program.functions for s in f.sections):
        for number, instr in enumerate(section.body):
            if isinstance(instr, OpPart):
                yield instr, section.run_at(number) is not None


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, str]]:
    """By run that was called, what of it torch has not compiled, and why."""
    reasons: dict[str, dict[str, str]] = {}
    first = kernels.CompiledRun._first

    def noting(run: kernels.CompiledRun, kind: object, args: tuple[object, ...]) -> object:
        result = first(run, kind, args)
        reasons[run.name] = run.refused if run.is_compiled else {run.name: "not compiled"}
        return result

    monkeypatch.setattr(kernels.CompiledRun, "_first", noting)
    return reasons


@pytest.mark.parametrize(("model", "plan"), CASES)
def test_a_plan_trains_as_one_device(model: str, plan: str, called: dict[str, dict[str, str]]) -> None:
    text = plan if "\n" in plan else plan_path(plan).read_text()
    outcome = try_plan(*captured(model), text, Training(2, lr=0.02), kernels=Kernels.COMPILED)
    assert outcome.kind == "equal", outcome.text
    assert called and not any(called.values())


@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS)
def test_every_plan_trains_as_one_device(
    plan: str, program: Callable[..., Any], called: dict[str, dict[str, str]]
) -> None:
    model, settings = PLANS[plan]
    program(plan, model, kernels=Kernels.COMPILED, **settings).verify()
    assert called and not any(called.values())


def test_each_plan_is_compiled() -> None:
    assert {*PLANS} == {path.stem for path in (*(HERE / "plans").glob("*.ssp"), *example_plans())}


@pytest.mark.parametrize(
    ("model", "share"),
    [(NARROW["gpt"], 0.95), (NARROW["swin"], 0.95), ("mixtral:tiny", 0.8)],
    ids=["gpt", "swin", "mixtral"],
)
def test_the_operators_of_a_model_are_compiled(model: str, share: float) -> None:
    inside = [is_inside for _, is_inside in places(compiled(model, ALONE))]
    assert sum(inside) >= share * len(inside)


def test_what_is_sent_ends_a_run() -> None:
    for function in compiled(NARROW["gpt"], plan_path("megatron").read_text()).functions:
        for section in function.sections:
            for start, stop in section.compiled:
                assert all(isinstance(i, OpPart) and not i.kernel.axes for i in section.body[start:stop])


def test_products_with_the_same_bias_are_cut_along_different_axes() -> None:
    text = (
        "mesh gpus(dp = 2, tp = 2)\nsplit model by wide into tp\nsplit model by narrow into dp\nassign model to gpus\n"
    )
    program, model = compiled("twins.py:shared_bias", text), captured("twins.py:shared_bias")
    assert [section.compiled[0] for f in program.functions for section in f.sections] == [(0, 2)]  # both products
    assert try_plan(*model, text, Training(2, lr=0.02), kernels=Kernels.COMPILED).kind == "equal"


def test_a_twin_keeps_a_result_from_being_overwritten() -> None:
    """Torch makes one operator of two that compute the same: then nothing may change the result of one in place."""
    text = "mesh gpus(tp = 2)\nsplit model by ffn into tp\nassign model to gpus\n"
    for model, in_place in (("twins.py:net_alone", True), ("twins.py:net", False)):
        program = compiled(model, text)
        bodies = [i for f in program.functions for i in f.body()]
        assert any(getattr(i, "in_place", (False, False))[0] for i in bodies) is in_place
        assert try_plan(*captured(model), text, Training(2, lr=0.02), kernels=Kernels.COMPILED).kind == "equal"
