"""The error of a step whose numbers are not finite."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, assert_never

import torch

from ..errors import EngineError
from ..find_nan.search import found_again, told_by_given, told_by_update
from ..step.parts import LocalTensor
from ..step.rank_program import RankProgram
from .step_end import NotFinite

if TYPE_CHECKING:
    from .engine import Engine


def failed_step(
    engine: "Engine", what: NotFinite, share: RankProgram, part: Mapping[str, torch.Tensor], scale: float
) -> EngineError:
    """The error for a step of `share` on this rank's part of a batch; called by all ranks alike. With `find_nan` the
    step runs again. `scale` is the factor of its loss."""
    step, ending, weights = engine.micro_steps, engine.ending, engine.weights.tensors.items()
    # with the elements that other ranks update
    held = [*engine.held(), *(LocalTensor(n, engine.pieces[n], None, x.detach(), owns=False) for n, x in weights)]
    match what:
        case NotFinite.WEIGHT:
            fact, lr = f"the update of step {step} made a weight that is not finite", engine.optim.param_groups[0]
            return told_by_update(fact, share, held, lr.get("lr"))
        case NotFinite.LOSS:
            fact = f"the loss of step {step} is {ending.loss}; nothing was updated"
        case NotFinite.GRADIENT:
            fact = f"a gradient of step {step} is not finite; nothing was updated"
        case _:
            assert_never(what)
    if not ending.options.find_nan:
        return told_by_given(fact, share, part, held, engine.since)

    def run() -> None:
        share.run(part, engine.seed, step, scale)

    return found_again(fact, share, part, held, engine.since, in_loss=what is NotFinite.LOSS, run=run)
