"""The captured graph against the untouched module, both in this process: the loss and every gradient of one step.

What is refused at capture is what leaves a trace there. A forward can also depend on a global variable, the time or
whether it is being compiled; then the numbers differ, and no plan is to blame. Both run nearly the same kernels, so
what may differ is rounding: 1e-4 of a tensor's largest element, and 5e-2 where anything is computed in half precision.
"""

import math
from typing import Any

import torch

from ssdsl.model.dropped_errors import CaptureDiffers
from ssdsl.model.fails import own_failure
from ssdsl.model.graph import Graph, Operator, Origin, Ref
from ssdsl.model.kept_state import module_kept
from ssdsl.model.source import Model
from ssdsl.runtime.draws import Draws
from ssdsl.text.diagnostic import PlanError

ALLOWED = 1e-4
FLOOR = 1e-6  # of the largest gradient of the model: what is zero but for rounding
HALF = 500  # times as much
SEED_AND_STEP = (0, 0)  # of random numbers
Values = dict[str, torch.Tensor]


def check_capture(model: Model, graph: Graph) -> None:
    """Raise PlanError that names the first tensor in which the graph and the module differ.

    Models on the meta device are not checked: they cannot run.
    """
    if model.is_meta:
        return
    batch = model.batches[0]
    with module_kept(model.module):
        try:
            loss, gradients = _of_module(model, {n: t.clone() for n, t in batch.items()})
        except Exception as error:  # whatever the user's code raises; its forward ran when it was captured
            raise PlanError(own_failure(model, "backward", error)) from error
    graph_loss, graph_gradients = _of_graph(model, graph)
    half = HALF if any(v.dtype in ("bfloat16", "float16") for v in graph.values.values()) else 1
    _compare(model, "the loss", graph_loss, loss, half * ALLOWED * abs(float(loss)))
    floor = FLOOR * max((_largest(g) for g in gradients.values()), default=0.0)
    for name, gradient in gradients.items():
        got = graph_gradients.get(name, torch.zeros_like(gradient))
        _compare(model, f"the gradient of `{name}`", got, gradient, half * (ALLOWED * _largest(gradient) + floor))


def _compare(model: Model, what: str, got: torch.Tensor, expected: torch.Tensor, allowed: float) -> None:
    error = (got.double() - expected.double()).abs()
    same = torch.isnan(got) & torch.isnan(expected) | (got == expected)  # infinities too
    error = error.masked_fill(same, 0.0).nan_to_num(nan=math.inf)
    if error.numel() and float(error.max()) > allowed:
        at = int(error.argmax())
        numbers = f"the graph gives {float(got.flatten()[at]):.6g}, the module {float(expected.flatten()[at]):.6g}"
        raise PlanError(CaptureDiffers(None, model.name, what, numbers, _reason(model)))


def _reason(model: Model) -> str:
    """What a second run of the module tells of the cause."""
    losses = []
    for _ in range(2):
        with module_kept(model.module):
            losses.append(float(_of_module(model, {n: t.clone() for n, t in model.batches[0].items()})[0]))
    if losses[0] != losses[1]:
        return f"the module by itself gives {losses[0]:.9g} and then {losses[1]:.9g} for the same batch and weights"
    return "the module by itself gives the same loss every time"


def _of_module(model: Model, batch: Values) -> tuple[torch.Tensor, Values]:
    named: Values = {n: p for n, p in model.module.named_parameters() if p.requires_grad}
    with Draws(*SEED_AND_STEP, model.generator):
        loss = model.compute(batch)
        return loss.detach(), _gradients(loss, named)


def _of_graph(model: Model, graph: Graph) -> tuple[torch.Tensor, Values]:
    values = _outside(model, graph)
    for operator in graph.operators:
        results = _run(operator, values)
        for operand, result in zip(operator.outputs, results, strict=True):
            values[operand.value] = result
    named = {v.name: values[v.name] for v in graph.of(Origin.WEIGHT) if values[v.name].requires_grad}
    return values[graph.loss].detach(), _gradients(values[graph.loss], named)


def _gradients(loss: torch.Tensor, weights: Values) -> Values:
    if not weights:
        return {}
    found = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
    return {n: g.to_dense() for n, g in zip(weights, found, strict=True) if g is not None}


def _outside(model: Model, graph: Graph) -> Values:
    """Inputs, and copies of weights, buffers and constants."""
    module = model.module
    state: dict[str, Any] = dict(module.named_parameters(remove_duplicate=False))
    state |= dict(module.named_buffers(remove_duplicate=False)) | graph.constants | model.batches[0]
    state |= {v.name: torch.tensor(SEED_AND_STEP) for v in graph.of(Origin.SEED)}
    outside = [n for n, v in graph.values.items() if v.origin is not Origin.OPERATOR]
    return {n: state[n].detach().clone().requires_grad_(state[n].requires_grad) for n in outside}


def _run(operator: Operator, values: Values) -> tuple[torch.Tensor, ...]:
    target, *args = (_given(a, values) for a in operator.args)
    result = target(*args, **{k: _given(v, values) for k, v in operator.kwargs})
    every = result if isinstance(result, (tuple, list)) else (result,)
    return tuple(t for t in every if isinstance(t, torch.Tensor))


def _given(item: Any, values: Values) -> Any:
    match item:
        case Ref(name):
            return values[name]
        case tuple():
            return [_given(i, values) for i in item]
    return item


def _largest(tensor: torch.Tensor) -> float:
    return float(tensor.abs().max()) if tensor.numel() else 0.0
