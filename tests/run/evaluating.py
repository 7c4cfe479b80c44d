"""A program that trains and one that evaluates, on the weights of the same ranks, as threads of this process."""

from dataclasses import dataclass, field
from typing import Any

import torch
from ssdsl.runtime.engine import Engine
from ssdsl.runtime.trainer import Trainer

from ssdsl.compile import Compiled
from ssdsl.model.source import Model
from ssdsl.run.in_process import RanksFailed, Turns, program_of
from ssdsl.run.mailbox import Exchange, Threaded
from ssdsl.runtime.outputs import outputs_of
from ssdsl.runtime.program import Program
from ssdsl.runtime.table import inputs_of, is_at, join_world, messages_of, role_of, tie_groups
from ssdsl.runtime.world import World

CPU = torch.device("cpu")


@dataclass
class Evaluated:
    """The loss and the outputs, whole, before and after training; the weights and buffers of each rank then."""

    losses: list[float] = field(default_factory=list)
    outputs: list[dict[str, torch.Tensor]] = field(default_factory=list)
    states: dict[int, Any] = field(default_factory=dict)
    roles: dict[int, Any] = field(default_factory=dict)


def evaluate(training: Compiled, evaluation: Compiled, model: Model, steps: int, lr: float = 0.05) -> Evaluated:
    """Evaluates the first batch, trains for some steps, and evaluates again."""
    trains, evaluates = program_of(training.program, model), program_of(evaluation.program, model)
    count = trains.table["world_size"]
    turns = Turns()
    exchange = Exchange(count, turns.wait, RanksFailed)
    found = Evaluated()
    kept: dict[int, list[Any]] = {}

    def run(rank: int) -> None:
        world = World(Threaded(rank, exchange))
        with world.enter():
            table = {**trains.table, "groups": _both(trains, evaluates)}
            join_world({**table, "messages": trains.table["messages"] + evaluates.table["messages"]}, world)
            role = role_of(trains.table, world)
            if role is None:
                tie_groups(trains.table, world)
                return
            own = Program(trains.table, trains.roles, trains.weights.copy(), trains.batches)
            trainer = Trainer(own, role, world, CPU, "sgd", lr, 0)
            kept[rank] = [_evaluated(evaluates, trainer, world)]
            for number in range(steps):
                trainer.step(number)
            kept[rank].append(_evaluated(evaluates, trainer, world))
            found.states[rank] = trainer.state()

    turns.run([lambda rank=rank: run(rank) for rank in range(count)])  # type: ignore[misc]
    exchange.check_empty()
    for when in range(2):
        losses = {loss for pair in kept.values() if (loss := pair[when][0]) is not None}
        assert len(losses) == 1  # all that report a loss report the same
        found.losses.append(losses.pop())
        found.outputs.append(_whole(evaluation, [part for pair in kept.values() for part in pair[when][1]]))
    return found


def _both(trains: Program, evaluates: Program) -> list[Any]:
    groups = trains.table["groups"]
    return [*groups, *(g for g in evaluates.table["groups"] if g not in groups)]


def _evaluated(program: Program, trainer: Trainer, world: World) -> tuple[float | None, list[Any]]:
    """The loss, and what this rank keeps of the outputs: name, whether it answers for it, places, tensor."""
    table, role = program.table, role_of(program.table, world)
    if role is None:
        return None, []
    code = program.code(role["name"])
    given = {name: program.weights[name] for name in table["constants"] if name in program.weights}
    batch = {name: piece.of(program.batches[0][name]) for name, piece in inputs_of(role, world).items()}
    batch |= {name: torch.tensor([0, 0]) for name in table["seed"]}
    engine = Engine(messages_of(table, world), trainer.weights, CPU, world)
    with torch.no_grad():
        engine.prepared = code.prepare(code.constants(given, CPU) | batch, CPU)
    code.step(engine)
    engine.mover.finish()
    parts = [(o.name, o.owns, *part) for o in outputs_of(table, world) for part in o.parts(engine.values)]
    loss = None
    if is_at(table["loss"], world) is not None:
        total = torch.stack(engine.losses).sum()
        if table["loss"]["axes"]:
            group = world.groups[table["loss"]["mesh"], tuple(table["loss"]["axes"])]
            world.transport.all_reduce(total, group.process_group)
        loss = float(total)
    return loss, parts


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
