"""Captures the same model in eval mode, with outputs by name: dropout is off, running statistics are read."""

import copy

from ssdsl.model.capture.initial_state import constants_of
from ssdsl.model.evaluation_errors import OutputsLeftOut
from ssdsl.model.graph import Graph, Origin
from ssdsl.model.load.model import Evaluation, Model, Outputs, computing
from ssdsl.model.module_to_graph import capture
from ssdsl.record import replace
from ssdsl.runtime.data.batch import kind

NOTHING = kind(None)


def capture_evaluation(model: Model, outputs: Outputs, training: Graph) -> Graph:
    """The graph of a copy of the module in eval mode; `training` is the graph of the module in training mode.

    Buffers that training changes (running statistics) are buffers here as well, but nothing changes them. With
    `outputs` None, the graph has all tensors that the forward returns. Raises PlanError as `capture` does, and for
    named outputs that the forward does not return, or that are no tensors.
    """
    weights = frozenset(v.name for v in training.of(Origin.WEIGHT) if v.name in training.readers)
    buffers = frozenset(v.name for v in training.of(Origin.BUFFER))
    model = computing(model)
    module = copy.deepcopy(model.module).eval()
    named = None if outputs is None else tuple(dict.fromkeys(outputs))
    evaluation = Evaluation(named, weights, buffers, constants_of(training))
    return capture(replace(model, module=module, evaluation=evaluation))


def left_out(graph: Graph) -> tuple[OutputsLeftOut, ...]:
    """A warning of what the forward returns that is no tensor."""
    others = tuple(f"`{leaf.name}` is {leaf.what}" for leaf in graph.returned if leaf.what not in ("", NOTHING))
    return (OutputsLeftOut(None, others),) if others else ()
