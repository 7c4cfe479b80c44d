"""A model in half precision: its weights, buffers and floating inputs are of that type, and so are its gradients.

The engine keeps a master copy of the weights in float32 and steps on it (Micikevicius et al. 2018).
"""

import copy
from dataclasses import replace

import torch

from ssdsl.model.source import Model
from ssdsl.runtime.train.precision import HALF


def computing(model: Model) -> Model:
    """The model as it computes; the given one keeps its numbers."""
    return model if model.precision is None else _of_type(model, HALF[model.precision])


def in_float32(model: Model) -> Model:
    """A model in half precision as it would compute without it."""
    return replace(_of_type(model, torch.float32), precision=None)


def _of_type(model: Model, dtype: torch.dtype) -> Model:
    batches = tuple({n: t.to(dtype) if t.is_floating_point() else t for n, t in b.items()} for b in model.batches)
    return replace(model, module=copy.deepcopy(model.module).to(dtype), batches=batches)
