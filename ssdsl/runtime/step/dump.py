"""Collects a rank's gradients, weights and buffers, unsharded, for a comparison with one device."""

from typing import Any

import torch

from ..layout.cut import Piece
from .flat_params import FlatWeights
from .weights import Weights

Saved = dict[str, Any]


def gradients(weights: Weights, pieces: dict[str, Piece]) -> Saved:
    """This rank's pieces of the gradients; called when they are complete."""
    found = {}
    for flat in weights.flats:
        values: dict[str, torch.Tensor | None]
        if flat.shard is not None:
            values = dict(flat.views(_gathered(flat, flat.shard.grad)))
        else:
            values = {name: parameter.grad for name, parameter in flat.parameters.items()}
        for name, value in values.items():
            found[name] = pieces[name].with_layout(
                value if value is not None else torch.zeros_like(weights.tensors[name])
            )
    return found


def state(weights: Weights, pieces: dict[str, Piece]) -> Saved:
    """This rank's pieces of the weights and buffers."""
    found = {}
    for flat in weights.flats:
        values = flat.views(_gathered(flat, flat.shard)) if flat.shard is not None else flat.parameters
        found.update({name: pieces[name].with_layout(value) for name, value in values.items()})
    return {"weights": found, "buffers": {n: pieces[n].with_layout(value) for n, value in weights.buffers.items()}}


def _gathered(flat: FlatWeights, mine: torch.Tensor | None) -> torch.Tensor:
    """All shards concatenated; not counted as communication of the step."""
    assert flat.shard is not None
    part = torch.zeros_like(flat.shard) if mine is None else mine.detach()
    for group in reversed(flat.levels.groups):
        whole = part.new_empty(part.numel() * group.size)
        group.world.transport.all_gather(whole, part.contiguous(), group.process_group)
        part = whole
    return part
