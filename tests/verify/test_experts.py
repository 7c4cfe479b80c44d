"""Mixtures of experts, in process, against one device: routers with and without a capacity, and where experts lie.

The routers' losses are made large, so that a factor in them, or in their gradients, would be seen.
"""

import pytest
import torch

from bench.fuzz.trial import Outcome, try_plan
from ssdsl.run.launch import Training
from tests.verify.conftest import captured

EXPERTS = {"moe_gpt": "blocks.*.ffn.experts", "mixtral": "model.layers.*.mlp.experts"}
MODELS = {
    "switch": "moe_gpt:tiny,balance=0.5,z=0.1",
    "dropped": "moe_gpt:tiny,capacity_percent=50,balance=0.5",
    "batch": "moe_gpt:tiny,group=batch,balance=0.5,z=0.1",
    "gshard": "moe_gpt:tiny,top=2,capacity_percent=75,balance=0.5",
    "shared": "moe_gpt:tiny,shared=1,z=0.1",
    "mixtral": "mixtral:tiny,balance=0.5",
}
PLANS = {
    "own": "mesh gpus(ep = 2)\nsplit model by experts into ep\n",
    "beside_data": "mesh gpus(dp = 2, ep = 2)\nsplit model by batch into dp\nsplit model by experts into ep\n",
    "over_data": "mesh gpus(ep = 2)\nsplit experts by experts into ep\nsplit model - experts by batch into ep\n",
    "over_data_with_tp": "mesh gpus(ep = 2, tp = 2)\nsplit experts by experts into ep\n"
    "split model - experts by batch into ep\nsplit experts by ffn into tp\n",
    "within": "mesh gpus(ep = 2, tp = 2)\nsplit model by experts into ep\nsplit model by ffn into tp\n",
    "of_micro_batches": "mesh gpus(ep = 2)\nsplit model by batch into m = 2\nsplit experts by experts into ep\n"
    "split model - experts by batch into ep\n",
    "unequal": "mesh gpus(ep = 3)\nsplit model by experts into ep = [2, 1, 1]\n",
}


def tried(name: str, plan: str, optimizer: str = "sgd") -> Outcome:
    spec = MODELS[name]
    model, graph = captured(spec)
    of = f'let experts = model["{EXPERTS[spec.partition(":")[0]]}"]\n'
    text = f"{of}{PLANS[plan]}assign model to gpus\n"
    return try_plan(model, graph, text, Training(2, optimizer=optimizer, lr=0.05))


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", MODELS)
def test_mixtures(name: str, plan: str) -> None:
    outcome = tried(name, plan)
    assert outcome.kind == "equal", outcome.text


@pytest.mark.parametrize("name", ["gshard", "mixtral"])
def test_state_of_experts(name: str) -> None:
    outcome = tried(name, "over_data_with_tp", "adamw")
    assert outcome.kind == "equal", outcome.text


@pytest.mark.parametrize("name", ["switch", "mixtral"])
def test_gradients_of_routers_have_the_losses_of_routers(name: str) -> None:
    """What is compared above depends on them: without them a router's gradient is another."""
    with_losses, _ = captured(MODELS[name])
    without, _ = captured("moe_gpt:tiny,balance=0,z=0" if name == "switch" else "mixtral:tiny,balance=0")
    router = next(n for n, _ in without.module.named_parameters() if "router" in n or "mlp.gate" in n)
    found = []
    for model in (with_losses, without):
        weight = model.module.get_parameter(router)
        (gradient,) = torch.autograd.grad(model.compute(model.batches[0]), weight)
        found.append(gradient)
    assert (found[0] - found[1]).norm() > 0.1 * found[1].norm()
