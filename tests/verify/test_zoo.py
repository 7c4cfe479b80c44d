"""Every model of the zoo, small, computes under common plans what one device computes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ssdsl.model.zoo.moe_gpt import SIZES
from ssdsl.show.tables.communication import communications

EXPERTS = """
mesh gpus(ep = 2)

let experts = model["blocks.*.ffn.experts"]

split experts by experts into ep
split model - experts by batch into ep

assign model to gpus
"""


@pytest.mark.thinned(9)
@pytest.mark.parametrize(
    "model",
    [
        "vgg",
        "resnet",
        "unet3d",
        "cosmoflow",
        "llama",
        "mixtral",
        "moe_gpt",
        "bert",
        "vit",
        "wide_resnet",
        "u_transformer",
    ],
)
def test_each_model_trains_with_copies_as_on_one_device(program: Callable[..., Any], model: str) -> None:
    program("data_parallel", f"{model}:tiny").verify()


@pytest.mark.thinned(16)
@pytest.mark.parametrize(
    ("plan", "model"),
    [
        ("tensor_parallel", "vgg:tiny"),
        ("tensor_parallel", "cosmoflow:tiny"),
        ("tensor_parallel", "mixtral:tiny"),
        ("tensor_parallel", "bert:tiny"),
        ("tensor_parallel", "vit:tiny"),
        ("megatron", "llama:tiny"),
        ("megatron", "moe_gpt:tiny"),
        ("pipeline", "mixtral:tiny"),  # its balance is a product of means over the whole batch
        ("pipeline", "resnet:tiny,statistics=4"),
        ("pipeline", "wide_resnet:tiny,statistics=4"),
        ("pipeline", "u_transformer:tiny"),  # its skips cross stages
        ("tensor_parallel", "ga_planes:tiny,decoder=convex,task=segmentation"),
        ("pipeline", "argus:tiny"),  # codes are chosen by each micro-batch, their gradients are added
        ("tensor_parallel", "argus:tiny-prior"),
        ("splitbrain", "vgg:tiny"),
        ("spatial", "cosmoflow:tiny"),
        ("spatial", "unet3d:tiny"),  # skips, transposed convolutions, batch norms
        ("spatial", "cosmoflow:tiny,norm=batch"),
    ],
)
def test_models_train_under_other_plans_as_on_one_device(program: Callable[..., Any], plan: str, model: str) -> None:
    program(plan, model).verify()


@pytest.mark.parametrize("depth", [8, 16])
def test_more_parts_than_voxels(program: Callable[..., Any], depth: int) -> None:
    """Layers of fewer voxels are cut by channels, and the last whole where channels are too few, too."""
    program("spatial", "cosmoflow:tiny", D=depth, H=1).verify()


@pytest.mark.parametrize(("workers", "group"), [(4, 1), (4, 4), (6, 2)])
def test_groups_of_splitbrain(program: Callable[..., Any], workers: int, group: int) -> None:
    program("splitbrain", "vgg:tiny,batch=12", N=workers, G=group).verify()


@pytest.mark.parametrize("group", ["sequence", "batch"])
def test_experts_on_the_devices_of_the_batch(program: Callable[..., Any], tmp_path: Path, group: str) -> None:
    """Tokens go to the devices of their experts and come back: for groups of a device one all_to_all each way."""
    (tmp_path / "experts.ssp").write_text(EXPERTS)
    made = program(tmp_path / "experts.ssp", f"moe_gpt:tiny,group={group}")
    made.verify()
    if group == "sequence":
        size = SIZES["tiny"]
        size_bytes = size.experts * size.batch // 2 * size.slots * size.hidden * 4
        sent = [(c.kind, c.size_bytes) for c in communications(made.compiled.program) if "ffn" in c.of]
        assert sent == [("all_to_all", size_bytes)] * 4
