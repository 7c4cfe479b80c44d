"""The plans of papers, in ranks that take turns: each trains as one device does, under several of its settings."""

import pytest

from ssdsl.cluster.load import load_cluster
from ssdsl.compile import compile_plan
from ssdsl.ir.comm import travels
from ssdsl.ir.function import Conversion
from ssdsl.ir.program import Kernels
from ssdsl.lang.assets import assets_folder
from ssdsl.lang.shipped import plan_path, shipped_plans
from ssdsl.model.alter.run_graph import trained_model
from ssdsl.run.in_process.run_in_process import program_of, run_in_process
from ssdsl.run.verify.verify import difference, verify_dumps
from ssdsl.runtime.options import Training
from ssdsl.simulate.simulate import simulate
from tests.captured import captured

SWIN, GPT = "swin:small,depths=2-2-1-1,hidden=16,batch=4", "gpt:tiny,hidden=32,seq=16,vocab=64"
PLANS: dict[str, tuple[str, list[dict[str, int]]]] = {
    "alpa_gpt": (GPT, [{"M": 2}, {"D": 8, "T": 2, "M": 2}]),
    "alpa_moe": ("moe_gpt:tiny", [{"S": 2, "M": 2}]),
    "alpa_wide_resnet": ("wide_resnet:tiny,statistics=4", [{}, {"W": 2}]),
    "any_megatron": (GPT, [{"M": 2}]),
    "any_zero3": ("resnet:tiny,statistics=4", [{"M": 2}]),
    "argus_codebook": ("argus:tiny", [{}, {"D": 2, "M": 2}]),
    "argus_pipeline": ("argus:tiny-prior", [{"D": 2, "M": 2}]),
    "cephalo": (GPT, [{}]),
    "cross_mesh_gpt": (GPT, [{}]),
    "cross_mesh_u_transformer": ("u_transformer:tiny", [{"D": 2, "M": 2}]),
    "ga_planes_points": ("ga_planes:tiny", [{"M": 2}]),
    "ga_planes_volume": ("ga_planes:tiny", [{}, {"D": 2, "M": 2}]),
    "galvatron_bert": ("bert:tiny,layers=4", [{}]),
    "gpt_co_shard": (GPT, [{}, {"T": 2}]),
    "gpt_megatron": (GPT, [{}, {"V": 2, "P": 1, "R": 2}, {"D": 2, "T": 1, "M": 2, "R": 0}]),
    "gpt_zero3": (GPT, [{}]),
    "fpdt": (GPT, [{}]),
    "fusionllm": ("gpt:tiny", [{}, {"S": 2, "F": 1, "percent": 10}]),
    "rannc_resnet": ("resnet:tiny,statistics=8", [{}, {"W": 2}]),
    "sketch_embeddings": ("t5:tiny", [{"E": 2, "T": 2, "M": 2, "R": 0}]),
    "sketch_large_images": (SWIN, [{"S": 2, "T": 2, "M": 2, "A": 2}, {"D": 2, "M": 2, "A": 2, "Z": 1}]),
    "sketch_long_sequences": (GPT, [{"S": 2, "M": 2, "C": 2, "P": 1}]),
    "sketch_passes": ("alphafold2:tiny", [{"S": 2, "M": 2}, {"D": 2, "M": 2, "Z": 1}]),
    "sketch_stages": (GPT, [{"D": 4, "S": 3, "M": 2}, {"D": 4, "T": 2, "M": 2, "R": 0}]),
    "spatial_cosmoflow": ("cosmoflow:tiny", [{"B": 2, "H": 2}, {"D": 8}]),
    "swin_co_shard": (SWIN, [{}, {"S": 3, "T": 1, "C": 4, "R": 1}]),
    "swin_megatron": (SWIN, [{}]),
    "swin_spmd": (SWIN, [{}, {"B": 1, "R": 0}]),
    "swin_zero3": (SWIN, [{}, {"D": 2, "M": 2, "R": 0}]),
    "zero_infinity": (GPT, [{}]),
}
ELSEWHERE = {"mbart": "test_interlaced", "t5": "test_interlaced", "alphafold2": "test_alphafold2"}  # of tests/verify
RUNS = [(plan, settings) for plan, (_, each) in PLANS.items() for settings in each]


def test_each_is_run() -> None:
    files = assets_folder("examples").joinpath("papers").glob("*.ssp")
    here = {path.stem for path in files if path.stem.partition("_")[0] not in ELSEWHERE}
    assert here == set(PLANS)
    assert set(PLANS) <= dict(shipped_plans()).keys()


@pytest.mark.thinned(26)
@pytest.mark.parametrize(
    ("plan", "settings"), RUNS, ids=[",".join([p, *(f"{k}={v}" for k, v in s.items())]) for p, s in RUNS]
)
def test_it_trains_as_one_device_does(plan: str, settings: dict[str, int]) -> None:
    check(plan, settings, Kernels.EAGER)


@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS)
def test_its_compiled_kernels_train_as_one_device_does(plan: str) -> None:
    check(plan, PLANS[plan][1][-1], Kernels.COMPILED)


def check(plan: str, settings: dict[str, int], kernels: Kernels) -> None:
    """A plan trains as one device does."""
    model, graph = captured(PLANS[plan][0])
    compiled = compile_plan(plan_path(plan), graph, settings, kernels=kernels)
    training = Training(2)
    finished = run_in_process(program_of(compiled.program, model), training)
    model = trained_model(model, compiled.plan.altered)
    found = difference(verify_dumps(model, training, finished.losses, finished.dumps))
    assert found is None, found


@pytest.mark.parametrize("plan", ["gpt_co_shard", pytest.param("swin_co_shard", marks=pytest.mark.slow)])
def test_parts_that_take_turns_exchange_a_gradient_once(plan: str) -> None:
    """Behind all of them: no part's backward waits for other devices."""
    program = compile_plan(plan_path(plan), captured(PLANS[plan][0])[1], {"T": 2}).program
    in_parts = [f for f in program.functions if "c" in {t.name for t in f.time}]
    assert in_parts
    for function in in_parts:
        exchanged = [i for i in function.body() if isinstance(i, Conversion) and any(map(travels, i.backward))]
        assert not exchanged, exchanged


@pytest.mark.slow
def test_with_parts_on_a_device_less_is_there_at_a_time() -> None:
    """Co-shard's reason to be: what Megatron's plan of as many devices has at once in a block's backward."""
    graph = captured("swin:small,depths=1-1-2-1,batch=4,image=256,window=8", meta=True)[1]
    cluster = load_cluster("laptop")

    def scratch(plan: str, **settings: int) -> int:
        compiled = compile_plan(plan_path(plan), graph, {"S": 1, "R": 1, **settings})
        return max(dict(d.peak_parts)["scratch"] for d in simulate(compiled.program, compiled.source, cluster).devices)

    assert scratch("swin_co_shard") < 0.5 * scratch("swin_megatron")
