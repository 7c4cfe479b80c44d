"""State in unequal parts: `split OPS.optimizer by row into dp = [3, 3, 2]`."""

from pathlib import Path

import pytest

from bench.fuzz.trial import try_plan
from ssdsl.cluster.load import load_cluster
from ssdsl.compile import compile_source
from ssdsl.ir.program import Program
from ssdsl.runtime.options import Training
from ssdsl.simulate.simulate import simulate
from ssdsl.text.source import Source
from tests.captured import captured, graph_of

GPT = "gpt:tiny,layers=2,hidden=32,heads=4,seq=8,batch=12,vocab=31"  # 31: weights of odd sizes
THREE = "mesh gpus(dp = 3)\nsplit model by batch into dp\n"
SIX = "mesh gpus(node = 2, gpu = 3)\nsplit model by batch into node, gpu, m = 2\n"
ALL = "assign model to gpus\n"
WEIGHTS = "split model.weights by row into dp = [5, 3, 2]\n"
PLANS = {
    "optimizer": f"{THREE}split model.optimizer by row into dp = [3, 3, 2]\n{ALL}",
    "grads": f"{SIX}split model.grads by row into node, gpu = [3, 1, 2]\n{ALL}",
    "weights": f"{THREE}{WEIGHTS}{ALL}",
    "on unequal samples": f"{THREE.replace('into dp', 'into dp = [6, 4, 2]')}{WEIGHTS}{ALL}",
    "weights that stay": f"{SIX}split model.weights by row into node = [2, 1], gpu = [3, 3, 2]\n"
    f"keep model.weights by row into gpu through step\n{ALL}",
    "in parts of parts": f"{SIX}split model.weights by row into gpu = [3, 3, 2]\n"
    f"split model.optimizer by row into node = [2, 1], gpu = [3, 3, 2]\n{ALL}",
    "on the host": f"{THREE}{WEIGHTS}{ALL}assign model.weights to host\n",
    "stages with a tied weight": "mesh gpus(pp = 2, dp = 2)\nsplit model by batch into dp, m = 2\n"
    "split model.optimizer by row into dp = [3, 2]\nlet stage = balance(model, 2)\n"
    "assign stage[s] to gpus[pp = s] for s in 0..2\n",
    "copies": f"{SIX.replace('node, gpu', 'node')}split model.optimizer by row into gpu = [3, 3, 2]\n{ALL}",
}


def program_of(text: str) -> Program:
    return compile_source(Source("plan.ssp", text), graph_of(GPT), {}, Path()).program


@pytest.mark.covering
@pytest.mark.parametrize("plan", PLANS)
def test_state_in_unequal_parts_computes_the_same(plan: str) -> None:
    found = try_plan(*captured(GPT), PLANS[plan], Training(2, optimizer="adamw", clip=0.5))
    assert found.kind == "equal", found.text


def test_each_device_steps_on_its_portion() -> None:
    (sharded,) = {flat.sharded for flat in program_of(PLANS["optimizer"]).flats}
    assert sharded.portions == (("dp", (3, 3, 2)),)
    for flat in program_of(PLANS["in parts of parts"]).flats:
        states = flat.sharded.weights, flat.sharded.optimizer
        assert [flat.elements // flat.elements_over(axes) for axes in states] == [8 // 3, 8 * 3 // (3 * 2)]
        assert flat.elements % 24 == 0


@pytest.mark.parametrize("portions", ["[2, 2, 2]", "[1, 1, 1]"])
def test_equal_portions_are_none(portions: str) -> None:
    text = PLANS["optimizer"]
    equal = program_of(text.replace("dp = [3, 3, 2]", "dp"))
    assert program_of(text.replace("[3, 3, 2]", portions)).flats == equal.flats


def optimizer_bytes(text: str, cluster: str, model: str = GPT) -> tuple[int, int]:
    """The bytes of the optimizer's state on the device that has least memory left, and those of its memory."""
    compiled = compile_source(Source("plan.ssp", text), graph_of(model), {}, Path())
    (device,) = simulate(compiled.program, compiled.source, load_cluster(cluster)).devices
    return dict(device.peak_parts)["optimizer"], device.capacity_bytes or 0


def test_the_largest_part_is_simulated() -> None:
    unequal, equal = (PLANS["optimizer"].replace("[3, 3, 2]", portions) for portions in ("[4, 1, 1]", "[2, 2, 2]"))
    assert optimizer_bytes(unequal, "laptop")[0] == pytest.approx(2 * optimizer_bytes(equal, "laptop")[0], rel=0.01)


def test_of_unlike_devices_the_fullest_is_simulated() -> None:
    """On 16 devices of 24 GB and 8 of 11 GB."""
    mesh = "mesh gpus(dp = 24)\nsplit model by batch into dp\nsplit model.weights by row into dp"
    found = {
        large: optimizer_bytes(f"{mesh} = {[large] * 16 + [1] * 8}\n{ALL}", "fusion48", GPT.replace("12", "24"))
        for large in (1, 5)
    }
    assert found[5][1] == found[1][1] == int(10.8 * (1 << 30))
    assert found[5][0] == pytest.approx(24 / 88 * found[1][0], rel=0.05)
