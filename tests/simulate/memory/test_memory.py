"""Memory by liveness: micro-batches in flight, ZeRO's state, recomputation, halves; and nothing is left over."""

from math import prod
from types import SimpleNamespace

import pytest

from ssdsl.analyse.program_index import ProgramIndex
from ssdsl.ir.function import Backward
from ssdsl.model.graph import Origin
from ssdsl.model.zoo import PARAMETERS, ZOO
from ssdsl.plan.plan import Phase
from ssdsl.simulate.memory.memory import Inputs
from ssdsl.simulate.report import Report
from ssdsl.simulate.timeline import EventKind, Stream
from tests.simulate.steps import UNIT, activations, cluster_of, compiled, graph_of, peak, step

STAGES, MICRO = 4, 8
CHAIN = "gpt:tiny,layers=8,batch=8"
GPT = "gpt:tiny"
SIZE = ZOO["gpt"].sizes["tiny"]
WEIGHTS = PARAMETERS["gpt:tiny"] * 4
SCHEDULES = {
    "pipeline": {},
    "one_f_one_b": {},
    "eager": {},
    "interleaved": {"V": 2},
    "zero_bubble H=1": {"H": 1},
    "zero_bubble H=2": {"H": 2},
    "v_shaped": {},
}
EAGER = cluster_of("a100x1024")  # papers count what PyTorch keeps of each operator
schedules = pytest.mark.parametrize("name", SCHEDULES)


def pipeline(name: str) -> Report:
    plan = name.partition(" ")[0]
    return step(compiled(plan, CHAIN, S=STAGES, M=MICRO, **SCHEDULES[name]), UNIT, EAGER)


def micro_batch() -> tuple[list[int], list[int]]:
    """Bytes of activations of a micro-batch in each of four stages, without what it leaves for the next stage, which is
    gone once that has been sent; and of what is there once for all."""
    program = compiled("one_f_one_b", CHAIN, S=STAGES, M=MICRO).program
    says = activations(program)
    each, once = [0] * STAGES, [0] * STAGES
    for function in (f for f in program.functions if f.backward is not Backward.NONE):
        stage = dict(function.submesh.fixed)["pp"]
        kept = says.of(function)
        (each if function.time else once)[stage] += kept.size_bytes - sum(size for _, size in kept.lent)
    return each, once


def in_flight(name: str) -> list[float]:
    """The fullest moment's activations of each stage, in micro-batches of an uncut backward. The one that runs may have
    what it leaves, too, which is less than a tenth of one."""
    found = peak(pipeline(name), "activations")
    return [(n - first) / one for n, one, first in zip(found, *micro_batch(), strict=True)]


def test_one_f_one_b_has_a_micro_batch_for_every_stage_from_it_on() -> None:
    assert in_flight("one_f_one_b") == pytest.approx([4, 3, 2, 1], abs=0.1)


def test_gpipe_has_all_micro_batches() -> None:
    assert in_flight("pipeline") == [MICRO] * STAGES


def test_eager_has_almost_twice_those_of_one_f_one_b() -> None:
    assert in_flight("eager") == pytest.approx([7, 5, 3, 1], abs=0.1)


def test_interleaved_has_those_of_one_f_one_b_and_some_of_a_chunk() -> None:
    """1 + (p - 1)/(pv) of 1F1B's on the first device (Narayanan et al. 2021, arXiv 2104.04473, section 2.2)."""
    first = in_flight("interleaved")[0]
    assert first / STAGES == pytest.approx(1 + (STAGES - 1) / (STAGES * 2), rel=0.03)  # a chunk's input is one more


def test_zero_bubble() -> None:
    """H1 has as much as 1F1B on its first stage, H2 2p - 1 micro-batches (Qi et al. 2023, table 2); on later stages
    gradients of weights wait, which keep less than the whole."""
    h1, h2 = in_flight("zero_bubble H=1"), in_flight("zero_bubble H=2")
    assert (h1[0], h2[0]) == pytest.approx((STAGES, 2 * STAGES - 1), abs=0.1)
    assert max(h1) == h1[0] and max(h2) == h2[0]


def test_zb_v_has_those_of_one_f_one_b_everywhere() -> None:
    """Every device has as many chunks; the first one's keep the loss's part too."""
    found, (each, _) = peak(pipeline("v_shaped"), "activations"), micro_batch()
    assert max(found[1:]) < 1.01 * min(found[1:]) and found[1] <= 1.01 * STAGES * each[1]
    assert found[1] < found[0] < 1.15 * (STAGES * each[0])


@schedules
def test_nothing_is_left_over(name: str) -> None:
    """A step ends with what it began with, weights, AdamW's two moments and the batch, and with the gradients."""
    program = compiled(name.partition(" ")[0], CHAIN, S=STAGES, M=MICRO, **SCHEDULES[name]).program
    report = pipeline(name)
    values = program.graph.values
    for role, memory in zip(program.roles, report.timeline.memory, strict=True):
        held = [values[p.weight] for p in program.params_of(role)]
        sizes = [(v.origin is Origin.WEIGHT, v.itemsize * prod(v.shape)) for v in held]
        state = sum(n * (4 if trained else 1) for trained, n in sizes)
        assert memory.size_bytes[-1] == state + Inputs(ProgramIndex(program)).of(role)
        assert list(memory.times_s) == sorted(set(memory.times_s)) and min(memory.size_bytes) > 0
        assert memory.peak_bytes == max(memory.size_bytes) == sum(n for _, n in memory.peak_parts)
        assert memory.size_bytes[memory.times_s.index(memory.peak_s)] == memory.peak_bytes
        for time, size in zip(memory.times_s, memory.size_bytes, strict=True):
            assert size == sum(change for at, change, _ in memory.changes if at <= time)


# -- state: Rajbhandari et al. 2020 (arXiv 1910.02054, section 5), with gradients and moments in the weights' dtype ----

ZERO = {  # cut: weights, gradients, moments; in parts of the weights' bytes
    0: lambda d: (1.0, 1.0, 2.0),
    1: lambda d: (1.0, 1.0, 2 / d),
    2: lambda d: (1.0, 1 / d, 2 / d),
    3: lambda d: (1 / d, 1 / d, 2 / d),
}


@pytest.mark.parametrize("d", [1, 2, 4])
@pytest.mark.parametrize("z", ZERO)
def test_zero(z: int, d: int) -> None:
    program = compiled("zero", GPT, D=d, Z=z) if z else compiled("data_parallel", GPT, D=d)
    report = step(program)
    (device,), (memory,), (role,) = report.devices, report.timeline.memory, program.program.roles
    weights, gradients, moments = ZERO[z](d)
    parts = dict(device.peak_parts)
    assert parts["weights"] / WEIGHTS == pytest.approx(weights, rel=1e-4)  # a unit is padded to equal parts
    assert parts["optimizer"] / WEIGHTS == pytest.approx(moments, rel=1e-4)
    left = (
        memory.size_bytes[-1] - Inputs(ProgramIndex(program.program)).of(role) - parts["weights"] - parts["optimizer"]
    )
    assert left / WEIGHTS == pytest.approx(gradients, rel=1e-4)


@pytest.mark.parametrize("t", [1, 2, 4])
def test_tensor_parallel_cuts_state(t: int) -> None:
    """All but norms, positions, and the biases behind the rows' cut."""
    (device,) = step(compiled("tensor_parallel", GPT, T=t)).devices
    gpt = SimpleNamespace(**SIZE.numbers)
    whole = (2 * gpt.layers + 1) * 2 * gpt.hidden + gpt.seq * gpt.hidden + gpt.layers * 2 * gpt.hidden
    expected = 4 * (whole + (PARAMETERS["gpt:tiny"] - whole) // t)
    assert dict(device.peak_parts)["weights"] == expected


# -- activations -----------------------------------------------------------------------------------------------------


def test_recomputing_lowers_activations_and_takes_time() -> None:
    spec = "models.py:runs"
    program, again = compiled("data_parallel", spec, D=1), compiled("recomputed_layers", spec)
    plain, lower = step(program), step(again)
    assert peak(lower, "activations")[0] < peak(plain, "activations")[0] / 3
    assert lower.devices[0].peak_bytes < plain.devices[0].peak_bytes
    assert lower.devices[0].compute_s > plain.devices[0].compute_s
    assert lower.model_flops == plain.model_flops


def test_behind_the_first_half_waits_what_the_second_needs() -> None:
    """Of a stage, one micro-batch: forward, D, and W at last: activations are, in turn, all, what W needs, none."""
    spec = "models.py:runs"
    found = compiled("halves", spec, M=2)
    kept = activations(found.program)
    function = next(f for f in found.program.functions if dict(f.submesh.fixed)["pp"] == 1)
    whole, waits = kept.of(function).size_bytes, kept.of(function).for_weights
    report = step(found, UNIT)
    memory = report.timeline.memory[1]
    ends = {
        (e.kind, e.coordinate): e.end_s for e in report.timeline.events if e.row == 1 and e.stream is Stream.COMPUTE
    }

    def at(time: float) -> int:
        return [n for t, n in zip(memory.times_s, memory.size_bytes, strict=True) if t <= time][-1]

    order = [t.phase for t in found.program.roles[1].computes()]
    assert order[-2:] == [Phase.WGRAD] * 2
    both_wait = at(max(t for (kind, _), t in ends.items() if kind is EventKind.DGRAD))
    one_waits = at(min(t for (kind, _), t in ends.items() if kind is EventKind.WGRAD))
    done = at(max(t for (kind, _), t in ends.items() if kind is EventKind.WGRAD))
    assert one_waits - done == waits and waits != whole
    assert both_wait - done == 2 * waits  # the first W, which starts here, brings the gradients of weights


def test_the_models_are_what_the_sizes_say() -> None:
    weights = [v for v in graph_of(GPT).values.values() if v.origin is Origin.WEIGHT]
    assert sum(prod(v.shape) * v.itemsize for v in weights) == WEIGHTS
