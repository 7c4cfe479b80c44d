"""Cells: what is proved, verified, refused; and what would be wrong is told from these."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

import ssdsl.run.verify.in_threads as in_threads
from ssdsl.ir.program import Kernels
from ssdsl.lang.read import read_source
from ssdsl.lang.shipped import plan_path
from ssdsl.matrix.cell import Cell, CellOutcome, PlanText
from ssdsl.matrix.settings import plan_texts, settings_of
from ssdsl.matrix.trials import Trials
from ssdsl.run.in_process.run_in_process import Finished, RanksFailed
from ssdsl.run.verify.in_threads import VerifierInThreads
from ssdsl.runtime.options import Training
from ssdsl.show.tables.matrix import matrix_json, matrix_view
from ssdsl.show.view import table
from ssdsl.text.source import Source
from ssdsl.workspace import Workspace
from tests.captured import captured

SPEC = "gpt:tiny,layers=2,hidden=32,seq=16,vocab=64"


def shipped(name: str) -> PlanText:
    path = plan_path(name)
    return PlanText(name, read_source(path), path.parent)


def trials_of(optimizer: str = "sgd") -> Trials:
    model, graph = captured(SPEC)
    training = Training(2, optimizer=optimizer, lr=0.1, allow_nan=True)
    return Trials("gpt", Workspace(graph), VerifierInThreads(model, graph, training, Kernels.EAGER))


@pytest.fixture(scope="module")
def trials() -> Trials:
    return trials_of()


def test_a_plan_is_proved_or_verified(trials: Trials) -> None:
    proved = Trials("gpt", trials.workspace).cell(shipped("tensor_parallel"), {"T": 2})
    assert proved.outcome is CellOutcome.PROVED and proved.worst is None and proved.devices == 2
    verified = trials.cell(shipped("tensor_parallel"), {"T": 2})
    assert verified.outcome is CellOutcome.VERIFIED and verified.is_proved
    assert verified.worst is not None and 0 < verified.worst.of_allowed < 1


def test_what_is_refused_is_no_failure(trials: Trials) -> None:
    cell = trials.cell(shipped("data_parallel"), {"D": 3})
    assert cell.outcome is CellOutcome.REFUSED and not cell.is_failure and not cell.is_proved
    assert cell.reason is not None and cell.reason.code == "E0203"


def test_what_training_refuses_is_refused_by_its_code() -> None:
    cell = trials_of("Adafactor").cell(shipped("zero"), {"D": 2})
    assert cell.outcome is CellOutcome.REFUSED and cell.is_proved
    assert (
        cell.reason is not None and cell.reason.code == "E0555" and "Adafactor" in cell.reason.text(cell.reason.title)
    )


def test_a_wrong_loss_is_found(trials: Trials, monkeypatch: pytest.MonkeyPatch) -> None:
    right = in_threads.run_in_process

    def wrong(*given: object) -> Finished:
        found = right(*given)  # type: ignore[arg-type]
        return replace(found, losses=(found.losses[0] * 1.001, *found.losses[1:]))

    monkeypatch.setattr(in_threads, "run_in_process", wrong)
    cell = trials.cell(shipped("data_parallel"), {"D": 2})
    assert cell.outcome is CellOutcome.WRONG and cell.is_failure
    assert cell.reason is not None and cell.reason.code == "E0512"


@pytest.mark.parametrize("error", [RuntimeError("broken"), RanksFailed("deadlock", "rank 0 waits")])
def test_what_breaks_is_a_cell_and_the_next_is_tried(
    trials: Trials, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> Finished:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(in_threads, "run_in_process", broken)
        cell = trials.cell(shipped("data_parallel"), {"D": 2})
    assert cell.outcome is CellOutcome.CRASHED and cell.is_failure and str(error) in cell.fault
    assert trials.cell(shipped("data_parallel"), {"D": 2}).outcome is CellOutcome.VERIFIED


def test_a_loss_that_is_not_finite_is_not_compared() -> None:
    model, graph = captured(SPEC)
    training = Training(1, optimizer="sgd", lr=0.1, allow_nan=True)
    module = model.module
    weight = next(module.parameters())
    kept = weight.detach().clone()
    try:
        weight.data.fill_(float("nan"))
        verifier = VerifierInThreads(model, graph, training)
        cell = Trials("gpt", Workspace(graph), verifier).cell(shipped("data_parallel"), {"D": 2})
    finally:
        weight.data.copy_(kept)
    assert cell.outcome is CellOutcome.UNCOMPARED and cell.is_failure and cell.is_proved


def test_settings_are_those_that_are_asked_for_and_those_that_a_plan_lists() -> None:
    text = PlanText(
        "p", Source("p.ssp", "param T = 2\nparam Z = 1 in [1, 2]\nmesh gpus(tp = T)\nassign model to gpus\n")
    )
    found = [*settings_of(text, {"T": (1, 2), "D": (8,)})]
    assert found == [{"T": t, "Z": z} for t in (1, 2) for z in (1, 2)]
    bare = PlanText("p", Source("p.ssp", "mesh gpus(tp = 2)\nassign model to gpus\n"))
    assert [*settings_of(bare, {"T": (1, 2)})] == [{}]


def test_without_names_all_examples_are_plans() -> None:
    found = {text.name for text in plan_texts([])}
    assert {"megatron", "zero", "experts"} <= found and "gpt_megatron" not in found
    own = plan_texts([("mine.ssp", Path("mine.ssp"), Source("mine.ssp", "mesh gpus(dp = 2)\n"))])
    assert [text.name for text in own] == ["mine.ssp"]


def test_the_table_of_100_columns_has_every_cell_on_a_line(trials: Trials) -> None:
    plans = [shipped(name) for name in ("sequence_parallel", "context_parallel", "experts")]
    cells = tuple(trials.cell(plan, setting) for plan in plans for setting in settings_of(plan, {"T": (2, 3)}))
    wide = Console(width=120, file=io.StringIO())
    with wide.capture() as shown:
        wide.print(table(matrix_view(cells), 100))
    lines = shown.get().splitlines()
    assert max(map(len, lines)) <= 120
    rows = [line for line in lines if line.startswith(("sequence_parallel ", "context_parallel ", "experts "))]
    assert len(rows) == len(cells) and sum("refused E0" in row for row in rows) >= 2
    found = matrix_json(cells)
    assert found["counts"]["wrong"] == 0 and len(found["cells"]) == len(cells)
    assert {cell["outcome"] for cell in found["cells"]} == {"verified", "refused"}


def test_the_words_of_a_failure_stand_out(trials: Trials) -> None:
    cell = Cell("gpt", "mine", {"T": 2}, CellOutcome.CRASHED, fault="RuntimeError: broken")
    view = matrix_view((cell,))
    assert "CRASHED" in view.rows[0] and view.notes[0] == "1 cell: 1 crashed"
