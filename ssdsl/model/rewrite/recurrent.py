"""Splits recurrent networks with dropout between their layers into single layers, in the exported graph.

torch's own decomposition of these operators into steps forgets the dropout (2.13).
"""

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten
RECURRENT = (aten.lstm.input, aten.gru.input, aten.rnn_tanh.input, aten.rnn_relu.input)


def split_recurrent(module: fx.GraphModule) -> None:
    """Replaces each recurrent call with dropout by calls of single layers, with dropout between them."""
    for node in list(module.graph.nodes):
        if node.target in RECURRENT:
            given = _given(node)
            if given["dropout"] and given["train"] and given["num_layers"] > 1:
                _Layers(module.graph, node, given).write()
    module.recompile()


def _given(node: fx.Node) -> dict[str, Any]:
    assert isinstance(node.target, torch._ops.OpOverload)
    names = (p.name for p in node.target._schema.arguments)
    return dict(zip(names, node.args, strict=False)) | dict(node.kwargs)


class _Layers:
    """Rewrites one recurrent call in its place."""

    def __init__(self, graph: fx.Graph, node: fx.Node, given: Mapping[str, Any]) -> None:
        self.graph, self.node, self.given = graph, node, given
        self.meta = {k: v for k, v in node.meta.items() if k != "val"}

    def write(self) -> None:
        given, count = self.given, self.given["num_layers"]
        states: Sequence[fx.Node] = given["hx"] if isinstance(given["hx"], (list, tuple)) else [given["hx"]]
        params, directions = given["params"], 2 if given["bidirectional"] else 1
        each = len(params) // count
        settings = (given["has_biases"], 1, 0.0, given["train"], given["bidirectional"], False)
        last: list[list[fx.Node]] = [[] for _ in states]
        with self.graph.inserting_before(self.node):
            x = given["input"]
            x = self.call(aten.transpose.int, x, 0, 1) if given["batch_first"] else x
            for layer in range(count):
                if layer:
                    x = self.call(aten.dropout.default, x, given["dropout"], True)
                rows = (layer * directions, (layer + 1) * directions)
                before = [self.call(aten.slice.Tensor, s, 0, *rows) for s in states]
                hx = before if isinstance(given["hx"], (list, tuple)) else before[0]
                made = self.call(self.node.target, x, hx, params[layer * each : (layer + 1) * each], *settings)
                x = self.call(operator.getitem, made, 0)
                for number, found in enumerate(last):
                    found.append(self.call(operator.getitem, made, number + 1))
            x = self.call(aten.transpose.int, x, 0, 1) if given["batch_first"] else x
            results = [x, *(self.call(aten.cat.default, found, 0) for found in last)]
        for user in list(self.node.users):  # all of them take one of the results
            user.replace_all_uses_with(results[user.args[1]])  # type: ignore[index]
            self.graph.erase_node(user)
        self.graph.erase_node(self.node)

    def call(self, target: Any, *args: Any) -> fx.Node:
        made = self.graph.call_function(target, args)
        made.meta = dict(self.meta)
        return made
