"""What of the model no rank trains or changes: weights that nothing reads, and buffers that are constants of programs.

A checkpoint has them all the same, so that it is the model's whole state.
"""

from collections.abc import Iterable

import torch

from .held import Held
from .piece import Piece
from .state import State
from .table import Table


def idle(table: Table, state: State, names: Iterable[str]) -> list[Held]:
    """Copies of the weights and buffers that no role has, for the first rank to save. `names` are those of the model's
    whole state, a tied weight's first alone."""
    roles = table["roles"]
    used = {w["name"] for role in roles for flat in role["flats"] for w in flat["weights"]}
    used |= {w["name"] for role in roles for w in role["others"]}
    return [_whole(name, state[name].detach().clone()) for name in names if name not in used]


def _whole(name: str, tensor: torch.Tensor) -> Held:
    return Held(name, Piece(name, tuple(tensor.shape), ()), None, tensor, owns=True)
