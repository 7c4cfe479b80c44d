"""Ranks as threads of one process: the numbers of real ones, and what goes wrong between them is named."""

import json
import math
import re
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from ssdsl.compile import compile_plan
from ssdsl.model.load.model import Model
from ssdsl.record import replace
from ssdsl.run.in_process.run_in_process import (
    Clocks,
    Finished,
    Place,
    RanksFailed,
    Turns,
    _Rank,
    program_of,
    run_in_process,
    run_ranks,
    run_with_noise,
)
from ssdsl.run.verify.verify import difference, verify_dumps
from ssdsl.runtime.options import Training
from ssdsl.runtime.program.program import CompiledProgram
from ssdsl.runtime.ranks.transfers import _boxed
from ssdsl.runtime.ranks.world import World
from tests.captured import captured

ROOT = Path(__file__).parent.parent.parent.parent
SGD = Training(steps=2, optimizer="sgd", lr=0.1)
ADAMW = Training(steps=2, optimizer="adamw", lr=1e-3)


@pytest.fixture(scope="module")
def gpt() -> tuple[Model, Any]:
    return captured("gpt:tiny,hidden=32,seq=16,vocab=64")


def program(gpt: tuple[Model, Any], plan: str, **params: int) -> CompiledProgram:
    path = next(p for folder in ("examples", "tests/verify/plans") if (p := ROOT / folder / f"{plan}.ssp").exists())
    return program_of(compile_plan(path, gpt[1], params).program, gpt[0])


@pytest.mark.thinned(11)
@pytest.mark.parametrize("training", [SGD, ADAMW], ids=lambda t: t.optimizer)
@pytest.mark.parametrize(
    ("plan", "params"),
    [("megatron", {"D": 2}), ("zero", {"Z": 3}), ("zero_bubble", {}), ("halves", {}), ("swapped", {}), ("stages", {})],
    ids=str,
)
def test_the_numbers_are_those_of_one_device(gpt: Any, plan: str, params: dict[str, int], training: Training) -> None:
    finished = run_in_process(program(gpt, plan, **params), training)
    assert difference(verify_dumps(gpt[0], training, finished.losses, finished.dumps)) is None


def test_two_programs_side_by_side(gpt: Any) -> None:
    """Each has its own ranks, groups and counts, and a run changes neither the program nor the model."""
    first, second = program(gpt, "data_parallel", D=2), program(gpt, "tensor_parallel", T=2)
    alone = run_in_process(first, SGD)
    run_in_process(second, SGD)
    again = run_in_process(first, SGD)
    assert again.losses == alone.losses and again.counts == alone.counts
    for name, piece in alone.dumps[1]["weights"].items():
        torch.testing.assert_close(again.dumps[1]["weights"][name]["tensor"], piece["tensor"], rtol=0, atol=0)


def changed(program: CompiledProgram, pattern: str, by: str, roles: tuple[str, ...] = ()) -> CompiledProgram:
    """The program with some text replaced, once in each of these roles' files or in the table."""
    if not roles:
        text, found = re.subn(pattern, by, json.dumps(program.table))
        assert found
        return replace(program, table=json.loads(text))
    texts = dict(program.roles)
    for role in roles:
        texts[role], found = re.subn(pattern, by, texts[role], count=1)
        assert found
    return replace(program, roles=texts)


def failure(program: CompiledProgram) -> RanksFailed:
    with pytest.raises(RanksFailed) as caught:
        run_in_process(program, SGD)
    return caught.value


def test_a_crash_names_rank_and_task(gpt: Any) -> None:
    wrong = failure(
        changed(program(gpt, "pipeline"), r"return \((\w+),\)\n", r"return (\1 + missing,)\n", ("gpus_pp1",))
    )
    assert wrong.kind == "crash"
    assert "rank 1, role gpus_pp1, forward of block" in str(wrong) and "name 'missing' is not defined" in str(wrong)


def test_ranks_that_wait_for_each_other(gpt: Any) -> None:
    """The first stage waits for a gradient before it sends the value that the second one needs for it."""
    sent = r"(    run\.send\(value_to_block1, m=0\)\n)((?:.*\n)*?)(    run\.wait_gradient\(value_to_block1, m=0\)\n)"
    wrong = failure(changed(program(gpt, "pipeline", S=2, M=2), sent, r"\3\2\1", ("gpus_pp0",)))
    assert wrong.kind in ("deadlock", "crash")


def test_a_collective_that_one_rank_leaves_out(gpt: Any) -> None:
    wrong = failure(
        changed(
            program(gpt, "tensor_parallel", T=2),
            r"all_reduce_?\(tp\)",
            "(lambda x: x if tp.index else all_reduce(tp)(x))",
            ("gpus",),
        )
    )
    assert wrong.kind in ("mismatch", "deadlock") and "rank 0" in str(wrong) and "rank 1" in str(wrong)


def test_collectives_of_two_kinds(gpt: Any) -> None:
    by = "(all_reduce(tp) if tp.index else lambda x: reduce_scatter(tp, dim=0)(x).repeat(2, 1, 1))"
    wrong = failure(changed(program(gpt, "tensor_parallel", T=2), r"all_reduce_?\(tp\)", by, ("gpus",)))
    assert wrong.kind == "mismatch" or "reduce_scatter" in str(wrong)


def broadcast(change: bool, left_out: int | None = None) -> list[list[float]]:
    """What three ranks have behind a broadcast of the second one, which then may change what it sends."""

    def body(world: World, place: Place) -> list[float]:
        group, x = world.transport.new_group(), torch.full((2,), float(world.rank))
        if world.rank == left_out:
            return []
        work = world.transport.start_broadcast(x, 1, group)
        if world.rank == 1 and change:
            x += 1
        world.transport.barrier()
        work.wait()
        return x.tolist()

    return run_ranks(3, body)


def test_a_broadcast() -> None:
    assert broadcast(change=False) == [[1.0, 1.0]] * 3
    with pytest.raises(RanksFailed, match="a tensor that was changed while it travelled"):
        broadcast(change=True)
    with pytest.raises(RanksFailed, match="to join broadcast from rank 1") as caught:
        broadcast(change=False, left_out=2)
    assert caught.value.kind == "deadlock"


def test_a_whole_value_travels_in_the_shape_of_its_box() -> None:
    """As its receivers have buffers of that shape, and a broadcast has one shape on all ranks."""
    box = (0, 6), (0, 3), (0, 2), (0, 12)
    assert _boxed(torch.zeros(6, 6, 12), ((6,), (3, 2), (12,)), box).shape == (6, 3, 2, 12)


def gathered(reads_early: bool = False, changes: bool = False, waits: bool = True) -> list[list[float]]:
    """What two ranks have of a gather, read before the wait or behind it."""

    def body(world: World, place: Place) -> list[float]:
        x, into = torch.full((2,), float(world.rank)), torch.zeros(4)
        work = world.transport.start_all_gather(into, x, world.transport.new_group())
        early = into.tolist()
        if changes:
            x += 1
        if waits:
            work.wait()
        return early if reads_early else into.tolist()

    return run_ranks(2, body)


def test_what_is_in_flight() -> None:
    assert gathered() == [[0.0, 0.0, 1.0, 1.0]] * 2
    assert all(math.isnan(x) for x in gathered(reads_early=True)[0])
    with pytest.raises(RanksFailed, match="changes a tensor while all_gather of float32"):
        gathered(changes=True)
    with pytest.raises(RanksFailed, match="does not wait for all_gather of float32"):
        gathered(waits=False)


def test_state_over_axes_of_which_a_gradient_is_partial_over_some(gpt: Any, tmp_path: Path) -> None:
    """Along the other axis all ranks have the same gradient: it is summed over the first and then cut over both."""
    plan = tmp_path / "plan.ssp"
    splits = "split model by batch into dp\nsplit model.{} by row into cp, dp"
    text = f"mesh gpus(dp = 2, cp = 2)\n{splits}\nassign model to gpus\n"
    for state in ("optimizer", "grads", "weights"):
        plan.write_text(text.format(state))
        made = program_of(compile_plan(plan, gpt[1], {}).program, gpt[0])
        finished = run_in_process(made, SGD)
        assert difference(verify_dumps(gpt[0], SGD, finished.losses, finished.dumps)) is None


def test_a_gradient_that_cancels_is_not_a_missing_one() -> None:
    """It is not zero where the last digits are wrong; one that a program does not compute is."""
    model, graph = captured("faint.py:critic")
    made = program_of(compile_plan(ROOT / "examples/data_parallel.ssp", graph, {}).program, model)
    finished = run_in_process(made, SGD)

    def differs(noisy: Finished) -> bool:
        exactly = partial(run_in_process, made, SGD, torch.float64)
        compared = verify_dumps(model, SGD, finished.losses, finished.dumps, exactly, lambda: noisy)
        return difference(compared) is not None

    assert differs(finished) and not differs(run_with_noise(made, SGD))


def spins() -> None:
    end = time.process_time() + 1.0
    while time.process_time() < end:
        pass


@pytest.mark.parametrize(("turn", "fails"), [(spins, True), (lambda: time.sleep(0.8), False)])
def test_a_turn_is_limited_in_processor_time(
    turn: Callable[[], Any], fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine a rank waits for a processor, which is no mistake of it."""
    monkeypatch.setattr("ssdsl.run.in_process.run_in_process.LIMIT_S", 0.3)
    monkeypatch.setattr("ssdsl.run.in_process.run_in_process.LOOK_S", 0.02)

    def body(world: World, place: Any) -> None:
        if world.rank == 1:
            turn()

    if not fails:
        run_ranks(2, body)
        return
    with pytest.raises(RanksFailed, match="rank 1 has computed for 0 s") as failed:
        run_ranks(2, body)
    assert failed.value.kind == "timeout"


def test_a_rank_that_has_ended_has_not_stalled() -> None:
    """Its thread has no clock any more, and that of the process is far ahead."""
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    time.sleep(0.01)  # until the system has forgotten it
    turns = Turns()
    turns.ranks, turns.since = [_Rank(lambda: None, thread=thread)], Clocks(0.0, 0.0)
    assert not turns._has_stalled()
