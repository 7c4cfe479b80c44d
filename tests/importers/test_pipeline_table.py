"""Tables of pipelines become plans whose devices run their tasks in the same order."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from ssdsl.compile import compile_plan
from ssdsl.exporters.pipeline_table import table_csv, table_of
from ssdsl.exporters.table import ActionKind, PipeAction, PipelineTable
from ssdsl.importers.foreign import Foreign
from ssdsl.importers.imported import Imported
from ssdsl.importers.pipeline_table import read, recognises
from ssdsl.importers.tables.chain import chain
from ssdsl.importers.tables.families import SCHEDULES, StdlibSchedule, family, table_of_widths
from ssdsl.importers.tables.table import read_table
from ssdsl.importers.tables.torch_schedules import table_of_schedule, torch_rows
from ssdsl.importers.widths import Widths
from ssdsl.lang.format import format_script
from ssdsl.lang.parse import parse
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.render import render
from ssdsl.text.source import Source
from tests.captured import graph_of

ERRORS = Path(__file__).parent.parent / "errors"
TWO = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"
SKEWED = "0F0,3F0,3B0,0F1,3F1,3B1,0B0,0B1\n,1F0,2F0,2I0,1I0,1F1,2F1,2I1,2W0,1I1,1W0,2W1,1W1\n"  # 0 and 3, 1 and 2


def foreign(text: str, name: str = "order.csv") -> Foreign:
    return Foreign(name, text, Path(name))


def table(text: str) -> PipelineTable:
    return read_table(Source("order.csv", text))[0]


def compiled(found: Imported, folder: Path, size: PipelineTable) -> PipelineTable:
    """The order in which the imported plan's devices run their tasks, which is proved to be possible."""
    for name, text in (("plan.ssp", found.text), *found.files):
        source = Source(name, text)
        assert format_script(parse(source), source) == text
        (folder / name).write_text(text)
    return table_of(compile_plan(folder / "plan.ssp", chain(size.stages, size.micro), {}).program)


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("schedule", "devices", "micro"),
    [
        pytest.param(schedule, devices, micro, id=f"{schedule.name}-{schedule.chunks}-{devices}-{micro}")
        for schedule in SCHEDULES
        for devices, micro in ((2, 4), (3, 6), (4, 8))
    ],
)
def test_a_schedule_of_the_library_is_found_again(schedule: StdlibSchedule, devices: int, micro: int) -> None:
    """What is exported of it is imported as it."""
    chunks = schedule.chunks or 3
    shape = schedule.v_shaped
    widths = Widths(stages=devices, chunks=chunks, micro=micro, schedule=schedule.name, v_shaped=shape)
    exported = table_of_widths(widths)
    assert table(table_csv(exported)) == exported
    assert family(exported) == widths


@pytest.mark.parametrize("text", [TWO, SKEWED, "0F0,0B0,0F1,0B1\n1F0,1B0,1F1,1B1\n"], ids=["1f1b", "skewed", "serial"])
def test_the_plan_has_the_order_of_the_table(text: str, tmp_path: Path) -> None:
    wanted = table(text)
    found = read(foreign(text))
    assert compiled(found, tmp_path, wanted).halved == wanted.halved
    assert table(table_csv(wanted)) == wanted
    assert bool(found.files) == (family(wanted) is None)


@pytest.mark.parametrize("seed", range(6))
def test_any_order_that_can_be_run_is_imported(seed: int, tmp_path: Path) -> None:
    """Stages on any ranks, backwards whole or in halves: the order of a random run of all tasks."""
    wanted = random_table(random.Random(seed))
    found = read(foreign(table_csv(wanted)))
    assert compiled(found, tmp_path, wanted).halved == wanted.halved


def random_table(draws: random.Random) -> PipelineTable:
    ranks, micro = draws.choice([2, 3]), draws.randint(1, 4)
    stages = draws.randint(ranks, 2 * ranks + 1)
    where = [*range(ranks), *(draws.randrange(ranks) for _ in range(stages - ranks))]
    draws.shuffle(where)
    rows: list[list[PipeAction]] = [[] for _ in range(ranks)]
    last = {(m, ActionKind.FORWARD): -1 for m in range(micro)} | {(m, ActionKind.INPUTS): stages for m in range(micro)}
    weights = list[PipeAction]()
    left = 2 * stages * micro
    while left or weights:
        options = list[PipeAction]()
        for m in range(micro):
            at = last[m, ActionKind.FORWARD] + 1
            if at < stages:
                options.append(PipeAction(at, ActionKind.FORWARD, m))
            back = last[m, ActionKind.INPUTS] - 1
            if at == stages and back >= 0:
                options.append(PipeAction(back, draws.choice([ActionKind.INPUTS, ActionKind.BACKWARD]), m))
        action = draws.choice([*options, *weights])
        if action in weights:
            weights.remove(action)
        else:
            left -= 1
            is_forward = action.kind is ActionKind.FORWARD
            last[action.micro, ActionKind.FORWARD if is_forward else ActionKind.INPUTS] = action.stage
            if action.kind is ActionKind.INPUTS:
                weights.append(action._replace(kind=ActionKind.WEIGHTS))
        rows[where[action.stage]].append(action)
    return PipelineTable(tuple(map(tuple, rows)))


@pytest.mark.parametrize(
    ("name", "chunks", "devices", "micro", "known"),
    [
        ("GPipe", 1, 4, 8, "gpipe"),
        ("Interleaved1F1B", 2, 4, 8, "interleaved"),
        ("Interleaved1F1B", 2, 4, 6, None),
        ("InterleavedZeroBubble", 1, 4, 8, "zb_h1"),
        ("InterleavedZeroBubble", 2, 2, 4, None),
        ("LoopedBFS", 2, 2, 4, None),
        ("ZBVZeroBubble", 2, 4, 8, "zb_v"),
        ("ZBVZeroBubble", 2, 4, 2, "zb_v"),
        ("DualPipeV", 2, 4, 10, "dual_pipe_v"),
    ],
)
def test_what_pytorch_says_of_its_schedules(
    name: str, chunks: int, devices: int, micro: int, known: str | None, tmp_path: Path
) -> None:
    wanted = table("\n".join(",".join(row) for row in torch_rows(name, devices, chunks, micro)))
    found = read(foreign(table_csv(wanted)))
    widths = family(wanted)
    assert (widths.schedule if widths else None) == known
    assert compiled(found, tmp_path, wanted).halved == wanted.halved


def test_a_schedule_that_pytorch_refuses_has_no_table() -> None:
    assert "microbatches" in str(table_of_schedule("DualPipeV", 4, 2, 4))


def test_pairs_communication_and_blanks() -> None:
    """A pair is two actions; what is inserted here says nothing, and every cell is in one of the lists."""
    text = "0F0,0SEND_F0,,0F1,0SEND_F1,0RECV_B0,0B0,0B1,0REDUCE_GRAD\n1UNSHARD,1F0,(1F1;1B0)OVERLAP_F_B,1B1,1RESHARD\n"
    found = read(foreign(text))
    cells = [
        cell.strip("()") for cell in text.replace(")OVERLAP_F_B", "").replace(";", ",").replace("\n", ",").split(",")
    ]
    listed = ",".join(item.written for item in found.items).split(",")
    assert sorted(listed) == sorted(filter(None, cells))
    assert [item.line for item in found.said] == [1, 2] and [item.line for item in found.silent] == [1, 2]
    assert all("one_f_one_b" in item.becomes or "gpipe" in item.becomes for item in found.said)


def test_the_names_of_old_tables() -> None:
    """Before torch 2.6, B was what I is now, and BW a whole backward."""
    old = "0F0,0F1,0BW0,0BW1\n1F0,1B0,1F1,1B1,1W0,1W1\n"
    assert table(old) == table("0F0,0F1,0B0,0B1\n1F0,1I0,1F1,1I1,1W0,1W1\n")


def test_a_name_that_no_function_can_have(tmp_path: Path) -> None:
    wanted = table(SKEWED)
    found = read(Foreign("2-rank.csv", SKEWED, Path("2-rank.csv")))
    assert [name for name, _ in found.files] == ["pipeline_2_rank_table.ssp"]
    assert compiled(found, tmp_path, wanted).halved == wanted.halved


def test_recognises() -> None:
    assert recognises(foreign(TWO)) and recognises(foreign("0F0,0F1,oops,0B0"))
    assert not recognises(foreign("name,size\na,1\n", "sizes.csv")) and not recognises(Foreign(TWO, TWO))


def test_the_plan_fits_any_model(tmp_path: Path) -> None:
    found = read(foreign(SKEWED))
    for name, text in (("plan.ssp", found.text), *found.files):
        (tmp_path / name).write_text(text)
    program = compile_plan(tmp_path / "plan.ssp", graph_of("gpt:tiny"), {}).program
    assert table_of(program).halved == table(SKEWED).halved


WRONG = {
    "E0724": ["0F0,0B0\n1F0,1B0,1X0,F1\n"],
    "E0725": ["0F0,0F0,0B0\n1F0,1B0\n", "0F0,0I0,0W0,0B0\n"],
    "E0726": ["0F0,0B0,0F1\n1F0,1B0,1F1,1B1\n", "0F0,0I0\n", "0F0,0B0\n2F0,2B0\n"],
    "E0727": ["0F0,0F1,0B0,0B1\n1F0,1B0\n1F1,1B1\n"],
    "E0728": ["0F0,0B0,0F1,0B1\n1F0,1F1,1B1,1B0\n", "0B0,0F0\n1F0,1B0\n"],
}


@pytest.mark.parametrize("code", WRONG)
def test_a_wrong_table_says_where(code: str, golden: Callable[[Path, str], None]) -> None:
    texts = []
    for text in WRONG[code]:
        with pytest.raises(PlanError) as raised:
            read(foreign(text))
        assert code in {d.code for d in raised.value.diagnostics}
        texts += [render(d) + "\n" for d in raised.value.diagnostics if d.code == code]
    golden(ERRORS / f"{code}.err", "\n".join(texts))


def test_all_that_is_missing_is_said_at_once() -> None:
    with pytest.raises(PlanError) as raised:
        read(foreign("0F0,0B1\n1F0,1F1,1B0\n"))
    said = [d.text(d.title) for d in raised.value.diagnostics]
    assert said == [
        "stage 0 has no forward of micro-batch 1",
        "stage 0 has no backward of micro-batch 0",
        "stage 1 has no backward of micro-batch 1",
    ]
