"""The order of a compiled pipeline as the table that PyTorch's pipelines take, which run it."""

import csv
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ssdsl.compile import compile_plan
from ssdsl.exporters.pipeline_table import table_csv, table_of
from ssdsl.exporters.table import PipelineTable
from ssdsl.importers.tables.families import table_of_widths
from ssdsl.importers.widths import Widths
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.render import render
from tests.captured import graph_of
from tests.cli.commands import call
from tests.torchrun import torchrun

ROOT = Path(__file__).parent.parent.parent
ERRORS = ROOT / "tests" / "errors"
PIPELINE = """\
use pipeline: {schedule}

mesh gpus(pp = 2, dp = 2, tp = 2)

split model by batch into dp, m = 4
split model.optimizer by row into dp
split model by ffn into tp

let stage = balance(model, {stages})

assign stage[s] to gpus[pp = {place}] for s in 0..{stages}
{schedule}(stage, 4{more})
"""


def exported(text: str, folder: Path, model: str = "gpt:tiny") -> PipelineTable:
    (folder / "plan.ssp").write_text(text)
    return table_of(compile_plan(folder / "plan.ssp", graph_of(model), {}).program)


def test_one_row_for_each_device_of_the_pipeline(tmp_path: Path) -> None:
    """Data and tensor parallelism, and sharded state, are in none of it."""
    text = PIPELINE.format(schedule="one_f_one_b", stages=2, place="s", more="")
    found = exported(text, tmp_path)
    assert table_csv(found) == "0F0,0F1,0B0,0F2,0B1,0F3,0B2,0B3\n1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n"


@pytest.mark.parametrize(
    ("schedule", "stages", "place", "more", "widths"),
    [
        ("interleaved", 4, "s % 2", ", 2", Widths(stages=2, chunks=2, micro=4, schedule="interleaved")),
        ("zb_v", 4, "min(s, 3 - s)", "", Widths(stages=2, chunks=2, micro=4, schedule="zb_v", v_shaped=True)),
        ("zb_h1", 2, "s", "", Widths(stages=2, micro=4, schedule="zb_h1")),
    ],
)
def test_a_model_makes_no_difference(
    schedule: str, stages: int, place: str, more: str, widths: Widths, tmp_path: Path
) -> None:
    """An embedding of positions that all micro-batches share is part of the stage that reads it."""
    text = PIPELINE.format(schedule=schedule, stages=stages, place=place, more=more)
    assert exported(text, tmp_path) == table_of_widths(widths)


@pytest.mark.parametrize(
    "widths",
    [
        Widths(stages=2, micro=4),
        Widths(stages=2, chunks=2, micro=4, schedule="interleaved"),
        Widths(stages=2, chunks=2, micro=4, schedule="dual_pipe_v", v_shaped=True),
    ],
    ids=lambda widths: widths.schedule,
)
def test_pytorch_reads_it(widths: Widths, tmp_path: Path) -> None:
    """Each cell is an action of PyTorch's, written as PyTorch writes it."""
    from torch.distributed.pipelining.schedules import _Action, _validate_schedule

    found = table_of_widths(widths)
    rows = [*csv.reader(table_csv(found).splitlines())]
    actions: Any = {rank: [_Action.from_str(cell) for cell in row] for rank, row in enumerate(rows)}
    assert [[str(action) for action in actions[rank]] for rank in actions] == rows
    where = _validate_schedule(actions, len(rows), found.stages, found.micro)
    assert [where[stage] for stage in range(found.stages)] == [*found.rank]


@pytest.mark.slow
@pytest.mark.parametrize(
    "widths",
    [
        Widths(stages=2, chunks=2, micro=4, schedule="zb_v", v_shaped=True),
        Widths(stages=2, micro=4),
        Widths(stages=2, chunks=2, micro=4, schedule="interleaved"),
    ],
    ids=lambda widths: widths.schedule,
)
def test_pytorch_runs_it(widths: Widths, tmp_path: Path) -> None:
    """On two processes, with the gradients of the model without a pipeline."""
    found = table_of_widths(widths)
    (tmp_path / "order.csv").write_text(table_csv(found))
    where = ",".join(map(str, found.rank))
    script = Path(__file__).parent / "run_table.py"
    done = torchrun(
        sys.executable, script, str(tmp_path / "order.csv"), str(found.stages), str(found.micro), where, copies=True
    )
    assert done.returncode == 0, done.stderr
    own = 2 * widths.chunks
    assert sorted(done.stdout.split("\n"))[1:] == [f"rank {rank}: {own} gradients, right" for rank in (0, 1)]


def test_the_command(tmp_path: Path) -> None:
    file = tmp_path / "order.csv"
    done = call("export", "pipeline", "--model", "gpt:tiny", "--csv", "-o", str(file), folder=tmp_path)
    assert done.returncode == 0 and file.read_text().startswith("0F0,0F1,0F2,0F3,0B0")
    assert call("export", "pipeline", "--model", "gpt:tiny", "--csv", "-o", str(file), folder=tmp_path).returncode == 0
    file.write_text("mine")
    refused = call("export", "pipeline", "--model", "gpt:tiny", "--csv", "-o", str(file), folder=tmp_path)
    assert refused.returncode == 1 and file.read_text() == "mine"
    assert call("export", "pipeline", "--model", "gpt:tiny", folder=tmp_path).returncode == 2


NONE = {
    "data_parallel": "all devices run the same stages",
    "terapipe": "it has several indices in time, m = 2, t = 2",
}
ALL = """\
mesh gpus(pp = 2)
split model by batch into m = 2
let ends = model["wte"] | model["lm_head"] | model["."]
assign model["h.{0-1}"] to gpus[pp = 0]
assign model - model["h.{0-1}"] - ends to gpus[pp = 1]
assign ends to gpus
split ends by vocab into pp
"""


def test_what_has_no_table_says_why(tmp_path: Path, golden: Callable[[Path, str], None]) -> None:
    texts = []
    for plan in [*NONE, ALL]:
        with pytest.raises(PlanError) as raised:
            if plan in NONE:
                file = ROOT / "examples" / f"{plan}.ssp"
                table_of(compile_plan(file, graph_of("gpt:tiny"), {}).program)
            else:
                exported(plan, tmp_path)
        (found,) = raised.value.diagnostics
        texts.append(render(found) + "\n")
        assert NONE.get(plan, "") in found.text(found.title)
    golden(ERRORS / "E0729.err", "\n".join(texts))
