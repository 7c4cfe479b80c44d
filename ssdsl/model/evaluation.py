"""Evaluation: the same model in eval mode, with results by name. Dropout is off, running statistics are read."""

import copy
from collections.abc import Sequence
from dataclasses import replace

from ssdsl.model.evaluation_errors import OutputNotComputed
from ssdsl.model.graph import Graph, Origin, Stage
from ssdsl.model.source import Evaluation, Model
from ssdsl.model.trace import capture
from ssdsl.text.diagnostic import PlanError


def capture_evaluation(model: Model, outputs: Sequence[str], training: Graph) -> Graph:
    """The graph of a copy of the module in eval mode; `training` is the graph of the module as it trains.

    What training changes (running statistics) is state here as well, which nothing changes. Raises PlanError: as
    `capture`, and for outputs that the forward does not return, or that no operator on weights computes.
    """
    buffers = frozenset(v.name for v in training.of(Origin.BUFFER))
    module = copy.deepcopy(model.module).eval()
    evaluation = Evaluation(tuple(dict.fromkeys(outputs)), buffers, training.constants)
    graph = capture(replace(model, module=module, evaluation=evaluation))
    stages = {o.value: operator.stage for operator in graph.operators for o in operator.outputs}
    if found := [_known(graph, name) for name, v in graph.outputs.items() if stages.get(v) is not Stage.COMPUTE]:
        raise PlanError(*found)
    return graph


def _known(graph: Graph, name: str) -> OutputNotComputed:
    match graph.values[graph.outputs[name]].origin:
        case Origin.WEIGHT | Origin.BUFFER:
            return OutputNotComputed(None, name, "is a weight", "take it from the weights")
        case Origin.CONSTANT:
            return OutputNotComputed(None, name, "is a constant", "take it from the module")
        case _:
            return OutputNotComputed(None, name, "follows from inputs alone", "compute it from the batch")
