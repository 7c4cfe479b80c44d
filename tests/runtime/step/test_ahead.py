"""Weights in parts are gathered ahead: in the order that the program says, one at a time, and to the same bits."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ssdsl.compile import compile_plan
from ssdsl.ir.program import Program
from ssdsl.run.in_process import run_in_process as ranks
from ssdsl.runtime.options import Training
from ssdsl.runtime.step.flat_params import ShardedWeights
from tests.captured import captured

GPT = "gpt:tiny,hidden=32,seq=16,vocab=64"
CHAIN = f"{Path(__file__).parents[2]}/models/tiny.py:chain"
PLAN = """
mesh gpus(dp = 2)
split model by batch into dp, m = 2
split model.weights by row into dp
prefetch model.weights by {}
assign model to gpus
"""


def program(tmp_path: Path, model: str, ahead: int, more: str = "") -> Program:
    path = tmp_path / f"plan{ahead}.ssp"
    path.write_text(PLAN.format(ahead) + more)
    return compile_plan(path, captured(model)[1], {}).program


def trained(made: Program, model: str) -> Any:
    return ranks.run_in_process(ranks.program_of(made, captured(model)[0]), Training(2))


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, bool]]]:
    """The gathers of the first rank: flat parameters, and whether each started where it was awaited."""
    found: list[tuple[int, bool]] = []
    waiting: list[int] = []
    start, read = ShardedWeights.start_gather, ShardedWeights._gathered

    def starting(flat: ShardedWeights) -> None:
        if flat.group.index == 0:
            found.append((flat.number, flat.number in waiting))
        start(flat)

    def gathered(flat: ShardedWeights) -> torch.Tensor:
        if flat.group.index == 0 and not flat._coming:
            waiting.append(flat.number)
            flat.start_gather()
            waiting.clear()
        return read(flat)

    monkeypatch.setattr(ShardedWeights, "start_gather", starting)
    monkeypatch.setattr(ShardedWeights, "_gathered", gathered)
    yield found


@pytest.mark.parametrize(("model", "more"), [(GPT, ""), (CHAIN, ""), (GPT, "recompute model")])
def test_gathers_start_in_the_programs_order(
    tmp_path: Path, model: str, more: str, starts: list[tuple[int, bool]]
) -> None:
    made = program(tmp_path, model, 1, more)
    (function,) = made.functions
    trained(made, model)
    forward, backward = (
        [n for group in groups for n in group] for groups in (function.ahead.forward, function.ahead.backward)
    )
    step = [*forward, *backward] * 2
    assert [number for number, _ in starts] == [*step, *step]
    late = [number for number, is_late in starts if is_late]
    assert late == [forward[0], backward[0]] * 4


@pytest.mark.parametrize("model", [GPT, CHAIN])
def test_no_bit_depends_on_it(tmp_path: Path, model: str) -> None:
    runs = [trained(program(tmp_path, model, ahead), model) for ahead in (0, 1, 3)]
    assert runs[0].losses == runs[1].losses == runs[2].losses
    first, *others = ([tensor for _, tensor in sorted(_tensors(run.dumps))] for run in runs)
    assert first and all(all(map(torch.equal, first, other)) for other in others)


def _tensors(dumps: Any, at: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in nested dictionaries and lists, with their places."""
    if isinstance(dumps, torch.Tensor):
        yield at, dumps
    items = dumps.items() if isinstance(dumps, dict) else enumerate(dumps) if isinstance(dumps, list | tuple) else ()
    for name, inside in items:
        yield from _tensors(inside, f"{at}.{name}")
