"""A program that trains and one that evaluates, on the weights of the same ranks, as threads of this process."""

from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ssdsl.compile import Compiled
from ssdsl.model.source import Model
from ssdsl.run.in_process import RanksFailed, Turns, program_of
from ssdsl.run.mailbox import Exchange, Threaded
from ssdsl.runtime.dump import state
from ssdsl.runtime.outputs import outputs_of
from ssdsl.runtime.program import Program
from ssdsl.runtime.share import Share
from ssdsl.runtime.table import join_world
from ssdsl.runtime.train.engine import Engine
from ssdsl.runtime.train.programs import InMemory
from ssdsl.runtime.world import World

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
    count = trains.table["world_size"]
    turns = Turns()
    exchange = Exchange(count, turns.wait, RanksFailed)
    found = Evaluated()
    kept: dict[int, list[Any]] = {}

    def run(rank: int) -> None:
        own = InMemory(replace(trains, weights=trains.weights.copy()))
        engine = Engine(own, World(Threaded(rank, exchange)), CPU)
        engine.optimizer(torch.optim.SGD, lr=lr)
        with engine.world.enter():
            join_world(evaluates.table, engine.world)
            share = Share(evaluates, engine.world, CPU, engine.weights, evaluates.weights)
        kept[rank] = [_evaluated(share, evaluates)]
        for number in range(steps):
            engine.step(trains.batches[number % len(trains.batches)])
        kept[rank].append(_evaluated(share, evaluates))
        found.states[rank] = state(engine.weights, engine.pieces)

    turns.run([lambda rank=rank: run(rank) for rank in range(count)])  # type: ignore[misc]
    exchange.check_empty()
    for when in range(2):
        found.losses.append(sum(pair[when][0] for pair in kept.values()))
        found.outputs.append(_whole(evaluation, [part for pair in kept.values() for part in pair[when][1]]))
    return found


def _evaluated(share: Share, program: Program) -> tuple[float, list[Any]]:
    """This rank's addend of the loss, and what it keeps of the outputs: name, whether it owns it, places, tensor."""
    with share.world.enter():
        share.run({name: piece.of(program.batches[0][name]) for name, piece in share.inputs.items()}, 0, 0)
        loss = share.loss()
    found = outputs_of(share.table, share.world)
    return loss, [(o.name, o.owns, *part) for o in found for part in o.parts(share.runner.kept)]


def _whole(evaluation: Compiled, parts: list[Any]) -> dict[str, torch.Tensor]:
    """The outputs from their owners' parts, each element once; the copies of other ranks are equal."""
    values = evaluation.program.graph.values
    found = {
        n: torch.full(values[v].shape, torch.nan, dtype=getattr(torch, values[v].dtype))
        for n, v in evaluation.program.graph.outputs.items()
    }
    for name, owns, places, tensor in parts:
        if owns:
            at = torch.meshgrid(*places, indexing="ij") if places else ()
            assert found[name][at].isnan().all(), f"an element of {name} has two owners"
            found[name][at] = tensor
    for name, owns, places, tensor in parts:
        if not owns:
            at = torch.meshgrid(*places, indexing="ij") if places else ()
            torch.testing.assert_close(found[name][at], tensor)
    assert not any(t.isnan().any() for t in found.values())
    return found
