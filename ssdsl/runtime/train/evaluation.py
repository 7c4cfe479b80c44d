"""Assembles whole outputs of an evaluation from the parts on the ranks."""

from collections.abc import Collection
from typing import Literal

import torch

from ..layout.cut import elements_at
from ..program.rank_program import RankProgram
from ..ranks.control import Control

Gather = Literal["all", "first"]


def gathered(share: RankProgram, outputs: Collection[str], control: Control, gather: Gather) -> dict[str, torch.Tensor]:
    """Some outputs of the last step, whole, on the CPU; called by all ranks alike."""
    mine = {output.name: (output, parts) for output, parts in share.runner.parts}
    found = {}
    for entry in (o for o in share.table.outputs if o.name in outputs):
        whole = torch.zeros(entry.shape, dtype=getattr(torch, entry.dtype))
        if entry.name in mine and mine[entry.name][0].owns:
            for places, part in mine[entry.name][1]:
                whole[elements_at(places)] = part.detach().cpu()
        control.merge(whole)
        if gather == "all" or control.rank == 0:
            found[entry.name] = whole
    return found
