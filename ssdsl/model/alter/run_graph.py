"""Runs a graph on one device, operator by operator, on the weights and buffers of its module.

So runs the model that a plan trains, where that is not the module itself (`altered.py`).
"""

from collections.abc import Mapping
from typing import Any

import torch

from ssdsl.model.alter.altered import Altered
from ssdsl.model.capture.initial_state import constants_of
from ssdsl.model.capture.overloads import as_torch, overload
from ssdsl.model.graph import Graph, Operator, Origin, replace_refs
from ssdsl.model.load.model import Model
from ssdsl.model.load.outputs import Batch
from ssdsl.model.load.unmaterialised import named_tensors, tensors_in
from ssdsl.record import as_dict
from ssdsl.runtime.layout.cut import contiguous
from ssdsl.runtime.random.single_device import Draws

Values = dict[str, torch.Tensor]


class GraphModel(Model, kw_only=True):
    """A model that computes a graph in place of its module's forward. Random numbers are those of the `Draws` around
    it."""

    graph: Graph

    def compute(self, batch: Batch, module: torch.nn.Module | None = None) -> Any:
        """The loss of a batch; buffers then have their new values."""
        return _loss(self.graph, self.module if module is None else module, batch)


def trained_model(model: Model, altered: Altered | None) -> Model:
    """The model that a plan trains: with the casts and compressions that it says, if it says some."""
    return model if altered is None else GraphModel(**as_dict(model), graph=altered.graph)


def values_of(graph: Graph, module: torch.nn.Module, batch: Mapping[str, torch.Tensor]) -> Values:
    """All values of a step, by name."""
    values: Values = constants_of(graph) | named_tensors(module) | dict(batch)
    values |= {v.name: Draws.current().seed_and_step for v in graph.of(Origin.SEED)}
    for operator in graph.operators:
        values |= run_operator(operator, values)
    return values


def _loss(graph: Graph, module: torch.nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    state, values = named_tensors(module), values_of(graph, module, batch)
    with torch.no_grad():
        new = {buffer: values[value].clone() for buffer, value in graph.updates.items()}
        for buffer, value in new.items():
            state[buffer].copy_(value)
    return values[graph.loss]


def run_operator(operator: Operator, values: Values) -> Values:
    """The results of an operator by name."""
    if operator.orders:  # it asks how they lie
        pairs = zip(operator.refs(), operator.orders, strict=True)
        values = {**values, **{name: contiguous(values[name], order) for name, order in pairs}}
    target, *args = replace_refs(operator.args, values.__getitem__, as_torch)
    result = overload(target)(*args, **dict(replace_refs(operator.kwargs, values.__getitem__, as_torch)))
    return {operand.value: tensor for operand, tensor in zip(operator.outputs, tensors_in(result), strict=True)}
