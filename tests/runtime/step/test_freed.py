"""Weights and gradients are freed with what trains them."""

import gc
import weakref

import torch

from ssdsl.runtime.step.flat_params import Replicated


def test_weights_are_freed_after_a_backward() -> None:
    flat = Replicated(0, {"w": torch.ones(4)}, None, 1)
    flat.parameters["w"].square().sum().backward()
    weight, gradient = weakref.ref(flat.parameters["w"]), weakref.ref(flat.parameters["w"].grad)
    del flat
    gc.collect()
    assert weight() is None and gradient() is None
