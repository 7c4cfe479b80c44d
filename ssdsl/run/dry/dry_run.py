"""Runs a step of each role on a device without kernels (`device.py`), as a rank without others."""

import traceback
from collections.abc import Iterator
from typing import Any

import torch

from ssdsl.codegen.write import program_files
from ssdsl.ir.program import Program
from ssdsl.model.graph import Graph, Origin
from ssdsl.record import Record
from ssdsl.run.dry.device import DEVICE, DryDevice, Note
from ssdsl.run.in_process.alone import Alone
from ssdsl.runtime.program.initial_state import InitialState
from ssdsl.runtime.program.program import CompiledProgram
from ssdsl.runtime.program.table import Table
from ssdsl.runtime.ranks.world import World
from ssdsl.runtime.step.provenance import Sites
from ssdsl.runtime.step.rank_program import RankProgram
from ssdsl.runtime.train.engine import Engine
from ssdsl.runtime.train.programs import InMemory


class DryRole(Record):
    """What the step of a role did: events with their counts, and the communication that nobody has waited for. A step
    that an operator ended has `failed`: its error, and where."""

    name: str
    sites: Sites
    notes: tuple[tuple[Note, int], ...]
    unawaited: tuple[str, ...] = ()
    failed: tuple[str, str] | None = None


def dry_run(program: Program, precision: str | None = None) -> tuple[DryRole, ...]:
    """A step of each role of a program, with clipping and an update by SGD."""
    return dry_run_of(dry_program(program, precision))


def dry_program(program: Program, precision: str | None = None) -> CompiledProgram:
    """The program with weights and constants on the device, and a batch of zeros on the host."""
    texts = program_files(program, precision)
    compiled = CompiledProgram.of(texts, _state(program.graph), [])
    inputs = compiled.table.inputs.items()
    batch = {name: torch.zeros(entry.shape, dtype=getattr(torch, entry.dtype)) for name, entry in inputs}
    compiled.batches.append(batch)
    return compiled


def dry_run_of(program: CompiledProgram) -> tuple[DryRole, ...]:
    """A step of each role of such a program."""
    return tuple(_role(program, rank) for rank in _first_ranks(program.table))


def _state(graph: Graph) -> InitialState:
    stored = (v for origin in (Origin.WEIGHT, Origin.BUFFER, Origin.CONSTANT) for v in graph.of(origin))
    return InitialState({v.name: torch.empty(v.shape, dtype=getattr(torch, v.dtype), device=DEVICE) for v in stored})


def _first_ranks(table: Table) -> Iterator[int]:
    """The first rank of each role."""
    meshes = {mesh.name: mesh for mesh in table.meshes}
    for role in table.roles:
        mesh = meshes[role.mesh]
        yield mesh.rank(dict.fromkeys(mesh.axes, 0) | role.fixed)


def _role(program: CompiledProgram, rank: int) -> DryRole:
    alone: Any = Alone(rank, program.table.world_size)
    world = World(alone)
    with world.enter():
        engine = Engine(InMemory(program), world, DEVICE)
        engine.optimizer(torch.optim.SGD, lr=0.1)
        share = engine.training
        assert share.role is not None and share.sites is not None
        device = DryDevice(world, f"role_{share.name}.py", lambda: share.runner.doing)
        failed = None
        with device.following():
            try:
                engine.step(program.batches[0], clip=1.0)
            except Exception as error:
                failed = _told(error, share)
    unawaited = () if failed else tuple(share.sites.unawaited(world, share.runner.mover))
    return DryRole(share.name, share.sites, tuple(device.notes.items()), unawaited, failed)


def _told(error: Exception, share: RankProgram) -> tuple[str, str]:
    """The first line of an error, and the operator whose line of the role's file it has passed."""
    assert share.sites is not None
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    lines = [f.f_lineno for f in frames if f.f_code.co_filename == f"role_{share.name}.py"]
    operator = share.sites.operator(lines[-1], "") or share.sites.comment(lines[-1]) if lines else ""
    reason = str(error).strip().partition("\n")[0] or type(error).__name__
    return reason, operator or f"in {share.runner.doing or 'the engine'}"
