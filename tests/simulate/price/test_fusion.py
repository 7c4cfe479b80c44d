"""Which operators are one kernel, what that keeps, and how long a product of matrices takes."""

import pytest

from ssdsl.analyse.program_index import ProgramIndex
from ssdsl.analyse.state import StatePrecision
from ssdsl.ir.program import Kernels
from ssdsl.plan.plan import Phase
from ssdsl.record import replace
from ssdsl.simulate.price.fusion import Fusion
from ssdsl.simulate.price.matmul import Product, matmul_seconds
from ssdsl.simulate.price.roofline import ComputeTimes, Computing
from tests.simulate.steps import activations, cluster_of, compiled, step

GPT = "gpt:tiny,layers=1,dtype=bf16,attention=eager,dropout=0.1"
A100 = cluster_of("a100x1024").device(0)


def kernels(fuses: bool) -> list[str]:
    """The kernels of a layer, each by the kinds of its operators."""
    program = compiled("data_parallel", GPT, D=1).program
    facts = ProgramIndex(replace(program, kernels=Kernels.FUSED if fuses else Kernels.EAGER))
    (function,) = program.functions
    found = zip(function.sections, Fusion(facts).launches(function), strict=True)
    (launches,) = (own for section, own in found if section.layer)
    return ["+".join(facts.operators[op.operator].kind for op in launch.ops) for launch in launches]


def test_runs_of_operators_are_one_kernel() -> None:
    """Products stand alone, a row's softmax or norm ends a kernel, views are in none."""
    assert kernels(fuses=True) == [
        "layer_norm",
        "addmm",
        "matmul",
        "mul+add+softmax",
        "dropout",
        "matmul",
        "reshape",
        "addmm",
        "dropout+add+layer_norm",
        "addmm",
        "mul+pow+mul+add+mul+tanh+add+mul",
        "addmm",
        "dropout+add",
    ]


def test_eager_launches_each() -> None:
    alone, together = kernels(fuses=False), kernels(fuses=True)
    assert not any("+" in k for k in alone)
    assert sorted(alone) == sorted(kind for k in together for kind in k.split("+"))


def test_on_gpus_attention_is_a_kernel_in_any_case() -> None:
    program = compiled("data_parallel", "gpt:tiny,layers=1", D=1).program
    (function,) = program.functions

    def attention(kernels: Kernels) -> ComputeTimes:
        cluster = cluster_of("a100x1024")
        facts = ProgramIndex.on(replace(program, kernels=kernels), cluster)
        op = next(op for op in function.operators() if facts.operators[op.operator].row.fused is not None)
        return Computing(facts, Fusion(facts)).of_one(function, op, cluster.device(0))

    assert attention(Kernels.FUSED) == attention(Kernels.EAGER)


def test_what_a_kernel_writes_leaves_it() -> None:
    program = compiled("data_parallel", GPT, D=1).program
    (function,) = program.functions
    for launches in Fusion(ProgramIndex(replace(program, kernels=Kernels.FUSED))).launches(function):
        for launch in launches:
            made = {v.name for op in launch.ops for v in op.results}
            assert not made & set(launch.reads)
            assert len(launch.ops) == 1 or len(launch.writes) < len(made)


def test_a_fused_gelu_keeps_what_enters_it() -> None:
    """Written out, eager PyTorch keeps four values of it; a layer keeps what Korthikanti et al. (2022) count."""
    program = compiled("data_parallel", GPT, D=1).program
    (function,) = program.functions
    eager, fused = (activations(program, fuses=f).storages(function) for f in (False, True))
    wide = 8 * 64 * 512 * 2  # bytes of a micro-batch's feed-forward
    gelu = {"view_9", "mul_1", "add_7", "tanh", "addmm_2", "pow_1"}
    assert sum(n for s, n in eager.items() if s in gelu) == 4 * wide
    assert sum(n for s, n in fused.items() if s in gelu) == wide
    assert fused.items() <= eager.items()


@pytest.mark.slow
def test_a_kernel_leaves_the_dtype_that_is_asked_for() -> None:
    """A softmax in single precision of scores in half: it keeps what it leaves."""
    program = compiled("data_parallel", "swin:tiny,dtype=fp16,attention=eager", D=1).program
    (function,) = program.functions
    facts = ProgramIndex(replace(program, kernels=Kernels.FUSED))
    launches = [x for section in Fusion(facts).launches(function) for x in section]
    (kernel, *_) = (x for x in launches if any("softmax" in op.operator for op in x.ops))
    assert [facts.operators[op.operator].kind for op in kernel.ops] == ["mul", "add", "softmax", "_to_copy"]
    (left,) = kernel.writes
    assert left.dtype == "float16"
    softmax = next(v.name.value for op in kernel.ops for v in op.results if "softmax" in v.name.value)
    kept = activations(program, fuses=True).storages(function)
    assert left.name.value in kept and softmax not in kept


def test_fusing_takes_less_time_and_memory() -> None:
    program = compiled("data_parallel", "gpt:350m,layers=2,batch=8,dtype=bf16,attention=eager", meta=True, D=1)
    other = replace(program, program=replace(program.program, kernels=Kernels.FUSED))
    fused, eager = (step(one).devices[0] for one in (other, program))
    assert fused.compute_s < 0.8 * eager.compute_s and fused.peak_bytes < eager.peak_bytes


def test_attention_with_dropout_is_one_kernel_on_a_gpu() -> None:
    """It keeps no scores: what it reads and gives, and a number for each query."""
    program = compiled("data_parallel", "gpt:tiny,layers=1,dropout=0.1", D=1).program
    (function,) = program.functions
    scores = 8 * 4 * 64 * 64 * 4
    eager, fused = (activations(program, fuses=f).storages(function) for f in (False, True))
    assert max(n for s, n in eager.items() if "attention" in s) >= scores
    assert max(n for s, n in fused.items() if "attention" in s) == scores // 2  # its result, 32 numbers of a head


# -- products of matrices ----------------------------------------------------------------------------------------------


def rate(product: Product) -> float:
    return product.flops / matmul_seconds(product, A100, "bfloat16") / A100.achievable_flops("bfloat16")


def test_large_products_reach_what_the_device_does() -> None:
    assert 0.9 < rate(Product(1, 108 * 256, 128 * 64, 8192)) <= 1


def test_one_tile_more_than_processors_takes_a_second_round() -> None:
    full, more = (matmul_seconds(Product(1, n, 128, 4096), A100, "bfloat16") for n in (108 * 256, 108 * 256 + 1))
    assert 1.4 < more / full < 2


def test_small_and_thin_products_are_slow() -> None:
    whole = Product(1, 4096, 4096, 4096)
    assert rate(whole) > rate(replace(whole, inner=128)) > rate(replace(whole, inner=16))
    assert rate(whole) > 2 * rate(Product(1, 256, 256, 4096))


def test_a_small_result_of_long_sums_uses_all_processors() -> None:
    """The gradient of a thin weight: some tiles, of which each is cut into parts of its sum."""
    assert 0.4 < rate(Product(1, 512, 64, 147456)) < 1
    assert rate(Product(1, 512, 64, 147456)) > 3 * rate(Product(1, 512, 64, 512))


def test_a_core_has_no_tiles() -> None:
    core = cluster_of("laptop").device(0)
    product = Product(1, 100, 100, 7)
    assert matmul_seconds(product, core, "float32") == product.flops / core.achievable_flops("float32")


def test_time_depends_on_the_size_of_a_micro_batch() -> None:
    """Twice as many micro-batches of half the size take longer: tiles are less full, and gradients are added up more
    often."""
    model = "gpt:1.3b,layers=2,batch=16,dtype=bf16"
    times = [step(compiled("pipeline", model, meta=True, S=1, M=m)).devices[0].compute_s for m in (1, 4, 16)]
    assert times[0] < times[1] < times[2] and times[2] > 1.05 * times[0]


def test_backward_of_a_product_is_two_products() -> None:
    program = compiled("data_parallel", "models.py:chain_of_8", D=1).program
    facts = ProgramIndex(replace(program, kernels=Kernels.FUSED))
    times = Computing(facts, Fusion(facts)).times(program.functions[0], A100)
    assert times.of(Phase.BACKWARD) == pytest.approx(times.of(Phase.DGRAD) + times.of(Phase.WGRAD))


# -- state -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "dtype", "size"),
    [
        (StatePrecision(), "bfloat16", 16),
        (StatePrecision(fp32_grads=True), "float16", 18),
        (StatePrecision(masters=False), "bfloat16", 8),
        (StatePrecision(), "float32", 16),
        (StatePrecision(fp32_grads=True), "float32", 16),
    ],
    ids=str,
)
def test_bytes_of_a_parameter(state: StatePrecision, dtype: str, size: int) -> None:
    weight = 4 if dtype == "float32" else 2
    assert weight + state.gradient_bytes(dtype) + state.optimizer_bytes(dtype) == size
