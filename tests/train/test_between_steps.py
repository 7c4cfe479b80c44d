"""Weights that other ranks have updated travel while the next forward runs: nobody reads them before they are there.

In these tests what travels is NaN until it is awaited.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ssdsl.compile import compile_plan
from ssdsl.ir.program import GatherParam, Program
from ssdsl.run.in_process.run_in_process import Finished, program_of, run_in_process
from ssdsl.runtime.options import Training
from ssdsl.runtime.step.flat_params import Sharded
from ssdsl.runtime.train.engine import Engine
from tests.captured import captured
from tests.train.conftest import batches, on_ranks

GPT = "gpt:tiny,layers=2,hidden=32,seq=16,vocab=64"
STEPS = 3
ROW = "split model.{} by row into dp\nassign model to gpus\n"
LAYERS = 'bucket model["*h.0*"].grads by 1\nbucket model["*h.1*"].grads by 2\n'  # a flat parameter each
DATA = "mesh gpus(dp = 2)\nsplit model by batch into dp, m = {m}\n"
STAGES = """use pipeline: one_f_one_b
mesh gpus(pp = 2, dp = 2)
let stage = balance(model, 2)
split model by batch into dp, m = 2
split model.optimizer by row into dp
assign stage[s] to gpus[pp = s] for s in 0..2
one_f_one_b(stage, 2)
"""
NODES = "mesh gpus(node = 2, dp = 2)\nsplit model by batch into node, dp\n"
FINER = NODES + "split model.{} by row into dp\nsplit model.optimizer by row into dp, node\nassign model to gpus\n"
TEXTS = {
    "zero_1": DATA.format(m=1) + ROW.format("optimizer") + LAYERS,
    "zero_2 in micro-batches": DATA.format(m=2) + ROW.format("grads") + LAYERS,
    "stages": STAGES,
    "shards in a node": NODES + ROW.format("optimizer") + LAYERS,
    "gradients in finer parts": FINER.format("grads") + LAYERS,
    "weights in parts": FINER.format("weights"),
    "recomputed": DATA.format(m=2) + ROW.format("optimizer") + LAYERS + "recompute model\n",
}


def compiled(tmp_path: Path, text: str) -> Program:
    (tmp_path / "plan.ssp").write_text(text)
    return compile_plan(tmp_path / "plan.ssp", captured(GPT)[1], {}).program


def trained(program: Program) -> Finished:
    return run_in_process(program_of(program, captured(GPT)[0]), Training(STEPS))


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Has each gather awaited where it starts, from now on."""

    def settled() -> None:
        gather = Sharded.gather

        def gather_and_settle(flat: Sharded) -> None:
            gather(flat)
            flat.settle()

        monkeypatch.setattr(Sharded, "gather", gather_and_settle)

    return settled


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_no_bit_depends_on_it(tmp_path: Path, text: str, at_once: Callable[[], None]) -> None:
    program = compiled(tmp_path, text)
    assert any(isinstance(action, GatherParam) for role in program.roles for action in role.actions)
    beside = trained(program)
    at_once()
    alone = trained(program)
    assert beside.losses == alone.losses and beside.counts == alone.counts
    one, other = ([tensor for _, tensor in sorted(tensors(run.dumps))] for run in (beside, alone))
    assert one and all(map(torch.equal, one, other))


def tensors(dumps: Any, at: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in nested dictionaries and lists, with their places."""
    if isinstance(dumps, torch.Tensor):
        yield at, dumps
    items = dumps.items() if isinstance(dumps, dict) else enumerate(dumps) if isinstance(dumps, list | tuple) else ()
    for name, inside in items:
        yield from tensors(inside, f"{at}.{name}")


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_each_is_awaited_where_the_program_says(tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the first rank, by the first task of each function: flat parameters, in the order in which they start, and the
    layers that first need them."""
    program, waits, starts = compiled(tmp_path, text), list[tuple[int, str]](), list[int]()
    gather, settle = Sharded.gather, Sharded.settle

    def noted_gather(flat: Sharded) -> None:
        gather(flat)
        starts.extend([flat.number] if flat.levels.updated[0].group.world.rank == 0 else [])

    def noted_settle(flat: Sharded) -> None:
        if flat._updated is not None and (world := flat.levels.updated[0].group.world).rank == 0:
            waits.append((flat.number, world.layer))
        settle(flat)

    monkeypatch.setattr(Sharded, "gather", noted_gather)
    monkeypatch.setattr(Sharded, "settle", noted_settle)
    trained(program)
    (first,) = program.functions_of(program.roles[0])
    wanted = [(flat, section.layer) for section in first.sections for flat in section.awaits]
    assert len(wanted) > 1 and starts == [flat for flat, _ in wanted] * STEPS
    assert waits[: len(wanted) * (STEPS - 1)] == wanted * (STEPS - 1)
    assert sorted(flat for flat, _ in waits[len(wanted) * (STEPS - 1) :]) == sorted(flat for flat, _ in wanted)


# -- between two steps -------------------------------------------------------------------------------------------------


def _read(engine: Engine, folder: Path) -> Any:
    return {name: tensor.clone() for name, tensor in engine.tensors().items()}


def _put(engine: Engine, folder: Path) -> Any:
    engine.put({name: tensor / 2 for name, tensor in engine.tensors().items() if tensor.is_floating_point()})
    return engine.step(batches()[1])


def _saved_and_loaded(engine: Engine, folder: Path) -> Any:
    engine.save(folder, wait=True)
    engine.step(batches()[1])
    engine.load(folder)
    return engine.step(batches()[2])


def _changed(engine: Engine, folder: Path) -> Any:
    engine.step(batches()[1], update=False)
    return engine.step(batches()[2], clip=0.1)


READERS = (_read, _put, _saved_and_loaded, _changed)


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("precision", [None, "bf16"])
def test_who_reads_weights_between_steps_awaits_them(
    tmp_path: Path, read: Callable[[Engine, Path], Any], precision: str | None, at_once: Callable[[], None]
) -> None:
    def work(engine: Engine, folder: Path) -> Any:
        engine.optimizer(torch.optim.AdamW, lr=1e-2)
        losses = [engine.step(batch) for batch in batches(2)]
        return losses, read(engine, folder), {name: tensor.clone() for name, tensor in engine.tensors().items()}

    beside = on_ranks("zero1", lambda engine: work(engine, tmp_path / "beside"), precision)
    at_once()
    alone = on_ranks("zero1", lambda engine: work(engine, tmp_path / "alone"), precision)
    for one, other in zip(beside, alone, strict=True):
        assert one[0] == other[0]
        mine, theirs = ([tensor for _, tensor in sorted(tensors(run))] for run in (one, other))
        assert mine and all(map(torch.equal, mine, theirs))
