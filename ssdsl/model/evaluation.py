"""Captures the same model in eval mode, with outputs by name: dropout is off, running statistics are read."""

import copy

from ssdsl.model.capture.initial_state import constants_of
from ssdsl.model.evaluation_errors import OutputNotComputed
from ssdsl.model.graph import Graph, Origin, Stage
from ssdsl.model.load.model import Evaluation, Model, Outputs, computing
from ssdsl.model.trace import capture
from ssdsl.record import replace
from ssdsl.text.diagnostic import PlanError


def capture_evaluation(model: Model, outputs: Outputs, training: Graph) -> Graph:
    """The graph of a copy of the module in eval mode; `training` is the graph of the module in training mode.

    Buffers that training changes (running statistics) are buffers here as well, but nothing changes them. With
    `outputs` None, the graph has all outputs that operators on weights compute. Raises PlanError as `capture` does, and
    for named outputs that the forward does not return, or that no operator on weights computes.
    """
    buffers = frozenset(v.name for v in training.of(Origin.BUFFER))
    model = computing(model)
    module = copy.deepcopy(model.module).eval()
    named = None if outputs is None else tuple(dict.fromkeys(outputs))
    evaluation = Evaluation(named, buffers, constants_of(training))
    graph = capture(replace(model, module=module, evaluation=evaluation))
    stages = {o.value: operator.stage for operator in graph.operators for o in operator.outputs}
    known = [name for name, value in graph.outputs.items() if stages.get(value) is not Stage.COMPUTE]
    if known and outputs is not None:
        raise PlanError(*(_known(graph, name) for name in known))
    return replace(graph, outputs={name: value for name, value in graph.outputs.items() if name not in known})


def _known(graph: Graph, name: str) -> OutputNotComputed:
    match graph.values[graph.outputs[name]].origin:
        case Origin.WEIGHT | Origin.BUFFER:
            return OutputNotComputed(None, name, "is a weight", "take it from the weights")
        case Origin.CONSTANT:
            return OutputNotComputed(None, name, "is a constant", "take it from the module")
        case _:
            return OutputNotComputed(None, name, "follows from inputs alone", "compute it from the batch")
