"""Recurrent networks with dropout between their layers, as single layers with dropouts between them.

torch's own decomposition of these operators into steps forgets the dropout (2.13).
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


RECURRENT = (aten.lstm.input, aten.gru.input, aten.rnn_tanh.input, aten.rnn_relu.input)


def with_dropout(decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """The decomposition of a recurrent operator from one that forgets the dropout between layers."""

    def layers(
        x: Tensor,
        hx: Any,
        params: Sequence[Tensor],
        has_biases: bool,
        count: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> Any:
        if not dropout or not train or count < 2:
            return decomposition(x, hx, params, has_biases, count, dropout, train, bidirectional, batch_first)
        states = [hx] if isinstance(hx, Tensor) else hx
        each, directions = len(params) // count, 2 if bidirectional else 1
        found: list[Any] = []
        x = aten.transpose.int(x, 0, 1) if batch_first else x
        for layer in range(count):
            x = aten.dropout.default(x, dropout, True) if layer else x
            before = [aten.slice.Tensor(s, 0, layer * directions, (layer + 1) * directions) for s in states]
            given = before[0] if isinstance(hx, Tensor) else before
            weights = params[layer * each : (layer + 1) * each]
            x, *after = decomposition(x, given, weights, has_biases, 1, 0.0, train, bidirectional, False)
            found.append(after)
        x = aten.transpose.int(x, 0, 1) if batch_first else x
        return x, *map(aten.cat.default, zip(*found, strict=True))

    return layers
