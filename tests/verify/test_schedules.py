"""Schedules of pipelines, and backward in halves: in whatever order, the numbers are those of a single device."""

from collections.abc import Callable
from typing import Any

import pytest

RECYCLING = "recycling.py:recycling"
STOPPED = "stopped.py:stopped"


@pytest.mark.thinned(9)
@pytest.mark.parametrize("params", [pytest.param({}, marks=pytest.mark.slow), {"S": 4, "M": 4}], ids=["2", "4"])
@pytest.mark.parametrize(
    ("plan", "extra"),
    [
        ("pipeline", {}),
        ("one_f_one_b", {}),
        ("eager", {}),
        ("interleaved", {}),
        ("zero_bubble", {"H": 1}),
        ("zero_bubble", {"H": 2}),
        ("v_shaped", {}),
        ("v_shaped", {"H": 1, "M": 8}),
        ("v_shaped", {"H": 2}),
        ("v_shaped", {"H": 3}),
    ],
    ids=lambda value: value if isinstance(value, str) else "".join(f"{k}{v}" for k, v in value.items()),
)
def test_schedules_of_the_library(
    program: Callable[..., Any], plan: str, extra: dict[str, int], params: dict[str, int]
) -> None:
    program(plan, "gpt:tiny,layers=8", **{**params, **extra}).verify()


@pytest.mark.parametrize(("stages", "micro"), [pytest.param(2, 4, marks=pytest.mark.slow), (4, 8)])
def test_several_forwards_for_one_backward(program: Callable[..., Any], stages: int, micro: int) -> None:
    program("three_f_one_b", RECYCLING, S=stages, M=micro).verify()


@pytest.mark.parametrize("model", ["gpt", "swin", "convnet.py:unet", "einsums.py:einsums", "tied.py:tied"])
def test_halves(program: Callable[..., Any], model: str) -> None:
    has_batch_norm = "unet" in model  # its statistics are those of the whole batch
    program("halves", model, M=1 if has_batch_norm else 2).verify()


@pytest.mark.parametrize("params", [{}, {"T": 1, "D": 2, "Z": 1}, {"T": 1, "D": 2, "Z": 2}, {"T": 1, "D": 2, "Z": 3}])
def test_halves_with_everything(program: Callable[..., Any], params: dict[str, int]) -> None:
    program("halves_everywhere", "gpt", **params).verify()


@pytest.mark.parametrize("plan", ["one_f_one_b", "halves", "stages", "zero"])
def test_gradients_that_stop(program: Callable[..., Any], plan: str) -> None:
    """A stage that only compares what it receives has no gradient to send back; a weight used detached has none."""
    program(plan, STOPPED).verify()


def test_weights_with_names_of_other_things(program: Callable[..., Any]) -> None:
    """In halves an operator is a function of its weights, by their names: none may hide a name that it uses."""
    program("halves", "names.py:names", T=2).verify()
