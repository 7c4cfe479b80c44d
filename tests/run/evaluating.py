"""A program that trains and one that evaluates, on the weights of the same ranks, as threads of this process."""

from dataclasses import dataclass, field
from typing import Any

import torch

from ssdsl.model.load.model import Model
from ssdsl.record import replace
from ssdsl.run.in_process.run_in_process import program_of, run_ranks
from ssdsl.runtime.ranks.world import World
from ssdsl.runtime.train.engine import Engine
from ssdsl.runtime.train.observers import state
from ssdsl.runtime.train.programs import InMemory
from ssdsl.workspace import Compiled

CPU = torch.device("cpu")


@dataclass
class Evaluated:
    """The loss and the outputs, whole, before and after training; the weights and buffers of each rank then."""

    losses: list[float] = field(default_factory=list)
    outputs: list[dict[str, torch.Tensor]] = field(default_factory=list)
    states: dict[int, Any] = field(default_factory=dict)


def evaluate(training: Compiled, evaluation: Compiled, model: Model, steps: int, lr: float = 0.05) -> Evaluated:
    """Evaluates the first batch, trains for some steps, and evaluates again."""
    trains, evaluates = program_of(training.program, model), program_of(evaluation.program, model)
    batch, names = model.batches[0], tuple(evaluation.program.graph.outputs)

    def run(world: World, place: Any) -> Any:
        own = replace(trains, weights=trains.weights.copy())
        engine = Engine(InMemory(own, evaluates), world, CPU)
        engine.optimizer(torch.optim.SGD, lr=lr)
        before = engine.evaluate(batch), engine.predict(batch, *names) if names else {}
        for number in range(steps):
            engine.step(model.batches[number % len(model.batches)])
        after = engine.evaluate(batch), engine.predict(batch, *names) if names else {}
        return before, after, state(engine.weights, engine.pieces)

    ranks = run_ranks(trains.table.world_size, run)
    found = Evaluated(states={rank: result[2] for rank, result in enumerate(ranks)})
    for when in range(2):
        (loss,) = {rank[when][0] for rank in ranks}  # all report the same
        found.losses.append(loss)
        found.outputs.append(ranks[0][when][1])
    return found
