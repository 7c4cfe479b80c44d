"""Every example on every model, and plans that no fixed system can express, compute what a single device computes."""

from collections.abc import Callable
from typing import Any

import pytest

from ssdsl.runtime.options import Training

UNET, EINSUMS, TIED = "convnet.py:unet", "einsums.py:einsums", "tied.py:tied"


@pytest.mark.thinned(14)
@pytest.mark.parametrize("model", ["gpt", "swin"])
@pytest.mark.parametrize(
    ("plan", "params"),
    [
        ("data_parallel", {}),
        ("tensor_parallel", {}),
        ("sequence_parallel", {}),
        ("megatron", {}),
        ("megatron", {"D": 2, "S": 1, "M": 2}),
        ("pipeline", {}),
        ("co_shard", {}),
        ("zero", {"Z": 1}),
        ("zero", {"Z": 2}),
        ("zero", {"Z": 3}),
    ],
    ids=lambda value: ",".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else value,
)
def test_the_examples_train_as_one_device(
    program: Callable[..., Any], plan: str, params: dict[str, int], model: str
) -> None:
    program(plan, model, **params).verify()


@pytest.mark.thinned(6)
@pytest.mark.parametrize(
    ("plan", "model"),
    [
        ("stages", UNET),  # skip connections pass a stage by, batch norm sees the whole batch
        ("recomputed", UNET),  # statistics summed over the replicas, and moved once
        ("heads_and_ffn", EINSUMS),
        ("co_shard", EINSUMS),
        ("data_parallel", "weighted.py:weighted"),
        ("data_parallel", "root_names.py:root_names"),  # weights that are called as operators are
        ("tied_stages", TIED),
        ("vocab_and_ffn", TIED),
        ("zero", TIED),
    ],
)
def test_models_of_users_train_as_on_one_device(program: Callable[..., Any], plan: str, model: str) -> None:
    program(plan, model).verify()


@pytest.mark.thinned(6)
@pytest.mark.parametrize(
    ("plan", "model"),
    [
        ("half_batch", "gpt"),  # sums are in flight between tasks
        ("interlaced", "gpt"),
        ("interlaced_loss", "gpt"),
        ("nested_state", "gpt"),
        ("ulysses", "gpt"),
        ("unequal_meshes", "gpt"),
        ("unequal_stages", "gpt"),
        ("uneven", "gpt"),
        ("uneven", "swin"),
        ("across", "gpt"),
        ("swapped", "gpt"),
        ("swapped", TIED),
        ("spread", "gpt"),
    ],
)
def test_plans_of_no_fixed_system_train_as_one_device(program: Callable[..., Any], plan: str, model: str) -> None:
    program(plan, model).verify()


@pytest.mark.parametrize(("plan", "params"), [("megatron", {}), ("zero", {"Z": 1}), ("zero", {"Z": 3})])
def test_adamw_steps_parts_as_it_steps_the_whole(
    program: Callable[..., Any], plan: str, params: dict[str, int]
) -> None:
    """Its state lives with the parts of the weights: a part's step is the whole's step, cut."""
    program(plan, "gpt", **params).verify(Training(steps=3, optimizer="adamw", lr=1e-3))


@pytest.mark.thinned(16)
@pytest.mark.parametrize(
    ("plan", "model", "params"),
    [
        ("megatron", "gpt", {}),
        ("megatron", "swin", {"D": 2, "S": 1, "M": 2}),
        ("sequence_parallel", "gpt", {}),
        ("zero", "gpt", {"Z": 3}),
        ("zero_bubble", "gpt:tiny,layers=8", {"S": 4, "M": 4}),
        ("halves_everywhere", "gpt", {"T": 1, "D": 2, "Z": 2}),
        ("three_f_one_b", "recycling.py:recycling", {}),
        ("zero", "recycling.py:recycling", {"Z": 3}),
        ("spatial", "unet3d", {}),
        ("unequal_stages", "gpt", {}),
        ("portions", "gpt", {}),
        ("swapped", TIED, {}),
        ("stages", UNET, {}),
        ("uneven", "gpt", {}),
    ],
)
def test_processes_train_as_one_device(
    program: Callable[..., Any], plan: str, model: str, params: dict[str, int]
) -> None:
    """What all others show in process, with torch.distributed between the ranks."""
    program(plan, model, **params).verify_processes()
