"""The weights of a module are a mapping, as a reader in a debugger expects."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ssdsl.runtime.step.flat_params import Replicated
from ssdsl.runtime.step.weights import Weights


class Gathers(Replicated):
    """Weights that other ranks would have to give."""

    def weights(self) -> dict[str, torch.Tensor]:
        raise AssertionError("a name is no reason to gather")


def weights_of(flat: Replicated) -> Weights:
    world: Any = SimpleNamespace(layer="")
    return Weights([flat], {"h.0.mean": torch.zeros(2)}, world)


VALUES = {"h.0.weight": torch.ones(4), "h.0.bias": torch.ones(1), "h.01.weight": torch.ones(3), "head": torch.ones(2)}


def test_weights_of_a_module_are_a_mapping() -> None:
    with weights_of(Replicated(0, VALUES, None, 1)).under("h.0") as w:
        assert list(w) == ["weight", "bias", "mean"] == list(w.keys()) and len(w) == 3
        assert w["weight"].shape == (4,) and w["bias"].shape == (1,)
        assert "bias" in w and "head" not in w
        with pytest.raises(KeyError):
            w["nothing"]
    with weights_of(Replicated(0, VALUES, None, 1)).under() as w:
        assert list(w) == [*VALUES, "h.0.mean"]


def test_names_gather_nothing() -> None:
    with weights_of(Gathers(0, VALUES, None, 1)).under("h.0") as w:
        assert list(w) and "bias" in w and len(w) == 3
