"""The state that a program starts from: the model's weights and buffers, and the constants of its graph."""

import torch

from ssdsl.model.capture.overloads import tensor_of
from ssdsl.model.graph import Graph
from ssdsl.model.load.model import Model
from ssdsl.model.load.unmaterialised import first_names
from ssdsl.runtime.program.initial_state import InitialState


def initial_state(model: Model, graph: Graph, evaluation: Graph | None = None) -> InitialState:
    """The weights, buffers and constants by name; those of a model without numbers are recipes."""
    constants = dict(constants_of(evaluation)) if evaluation is not None else {}
    state = constants | constants_of(graph) | model.module.state_dict()
    tensors = {n: t.detach().clone() for n, t in state.items() if not t.is_meta}
    return InitialState(tensors, model.recipes, state_names(model.module))


def constants_of(graph: Graph) -> dict[str, torch.Tensor]:
    """The tensors stored in a graph by name; those without numbers are on the meta device."""
    return {name: tensor_of(constant) for name, constant in graph.constants.items()}


def state_names(module: torch.nn.Module) -> dict[str, str]:
    """For each name in the module's `state_dict`, the first name of the same tensor."""
    return first_names(module.state_dict(keep_vars=True))
