"""The table of exposed communication, and changes that hide some of it, each of which does."""

from pathlib import Path

import pytest

from ssdsl.cluster.cluster import Cluster
from ssdsl.compile import compile_source
from ssdsl.record import replace
from ssdsl.repl.errors import UnknownCommand
from ssdsl.show.advice.exposed import ExposedRow, exposed_on, exposed_rows, exposed_view
from ssdsl.show.advice.hides import changes, helps, what_hides
from ssdsl.show.tables.communication import communication_view
from ssdsl.show.view import as_json
from ssdsl.simulate.exposed import Why
from ssdsl.simulate.report import Report
from ssdsl.simulate.simulate import simulate
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Source
from ssdsl.workspace import Compiled
from tests.simulate.steps import ROOT, graph_of
from tests.simulate.test_exposed import SMALL, slow

ONE_F_ONE_B = """\
use pipeline: one_f_one_b
mesh gpus(pp = 4)
split model by batch into m = 16
let stage = balance(model, 4)
assign stage[s] to gpus[pp = s] for s in 0..4
one_f_one_b(stage, 16)
"""
GPIPE = """\
use pipeline: gpipe
mesh gpus(pp = 2)
split model by batch into m = 16
let stage = balance(model, 2)
assign stage[s] to gpus[pp = s] for s in 0..2
gpipe(stage, 16)
"""
ZB_H1 = ONE_F_ONE_B.replace("one_f_one_b", "zb_h1")
ZERO = """\
mesh gpus(dp = 4)
split model by batch into dp, m = 4
split model.optimizer by row into dp
split model.grads by row into dp
assign model to gpus
"""
TENSORS = """\
mesh gpus(tp = 2)
split model by heads into tp
split model by ffn into tp
assign model to gpus
"""


def compiled(text: str, cluster: Cluster) -> Compiled:
    return compile_source(Source("p.ssp", text), graph_of(SMALL), {}, Path(ROOT / "examples"), cluster)


def simulated(text: str, cluster: Cluster) -> tuple[Compiled, Report, list[ExposedRow]]:
    found = compiled(text, cluster)
    report = simulate(found.program, found.source, cluster)
    return found, report, exposed_rows(found.program, cluster, report)


@pytest.mark.parametrize(
    ("text", "words", "factor"),
    [
        (ONE_F_ONE_B, "`eager_one_f_one_b` in place of `one_f_one_b`", 300.0),
        (ZB_H1, "`zb_h2` in place of `zb_h1`", 300.0),
        (f"{GPIPE}prefetch model by 0\n", "`prefetch model by 4`", 300.0),
        (ZERO, "without `split model.grads by row into dp`", 300.0),
    ],
)
def test_a_change_that_is_named_hides_communication(text: str, words: str, factor: float) -> None:
    """The plan with it compiles, and its devices wait less."""
    cluster = slow(factor)
    found, report, rows = simulated(text, cluster)
    afters: list[Report] = []

    def trial(changed: str) -> Report:
        afters.append(simulated(changed, cluster)[1])
        return afters[-1]

    (note,) = what_hides(found.program, found.source, report, rows, trial)
    assert note.startswith(f"{words}: exposed ")
    (after,) = afters
    assert helps(report, after) and after.exposed_s < report.exposed_s and after.step_s <= report.step_s


def test_a_change_that_does_not_help_is_not_named() -> None:
    found, report, rows = simulated(ONE_F_ONE_B, slow(300.0))
    assert [*changes(found.program, found.source, rows)]
    assert what_hides(found.program, found.source, report, rows, lambda _: report) == []

    def refused(_: str) -> Report:
        raise PlanError(UnknownCommand(None, "", ()))

    assert what_hides(found.program, found.source, report, rows, refused) == []


@pytest.mark.parametrize(
    ("text", "kind", "line", "why"),
    [(TENSORS, "all_reduce", 2, Why.HERE), (ZERO, "all_gather", 3, Why.DATA)],
)
def test_rows_name_the_statement(text: str, kind: str, line: int, why: Why) -> None:
    _, report, rows = simulated(text, slow(1.0))
    first = as_json(exposed_view(report, rows))[0]
    assert str(first["communication"]).startswith(f"{kind}, ") and str(first["statement"]).startswith(f"p.ssp:{line}")
    assert first["why"] == why and 0 < float(first["exposed_s"] or 0) < report.step_s


@pytest.mark.parametrize("text", [TENSORS, ZERO])
def test_rows_add_up_to_what_a_device_waits_for(text: str) -> None:
    """With one role each row is of the same device."""
    _, report, rows = simulated(text, slow(1.0))
    assert sum(row.time_s for row in rows) == pytest.approx(report.devices[0].exposed_s)


def test_without_communication_there_is_no_row() -> None:
    _, report, rows = simulated("mesh gpus(dp = 1)\nassign model to gpus\n", slow(1.0))
    assert exposed_view(report, rows).notes == ("no device waits for communication",)


def test_short_waits_have_no_row_but_are_said() -> None:
    _, report, rows = simulated(TENSORS, slow(1.0))
    short = [replace(row, time_s=0.0004 * report.step_s) for row in rows]
    view = exposed_view(report, short)
    assert view.rows == ()
    assert view.notes == ("devices wait for communication, but for each less than 0.05% of the step",)


def test_a_wait_for_a_buffer_says_which_statement_bounds_it() -> None:
    _, _, rows = simulated(f"{GPIPE}prefetch model by 0\n", slow(300.0))
    assert "a line of the plan: p.ssp:7: prefetch model by 0" in [row.reason for row in rows]


def test_the_communication_of_a_plan_has_a_column() -> None:
    """Each row of `show comm` that a device waits for is one of those that the simulation names."""
    found, report, _ = simulated(TENSORS, slow(1.0))
    waits = exposed_on(found.program, slow(1.0), report)
    rows = as_json(communication_view(found.program, exposed=waits))
    assert sum(float(row["exposed_s"] or 0) for row in rows) == pytest.approx(report.exposed_s)
