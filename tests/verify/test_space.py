"""Networks of images and volumes split in space: on devices, in time, into unequal parts, with other splits."""

import pytest

from bench.fuzz.trial import FOLDER, Outcome, try_plan
from ssdsl.compile import compile_source
from ssdsl.ir.function import OpPart
from ssdsl.ir.program import Program
from ssdsl.lang.parse import parse
from ssdsl.lower.lower import lower
from ssdsl.model.graph import Graph
from ssdsl.plan.interpret import interpret_all
from ssdsl.run.in_process.run_in_process import program_of, run_in_process
from ssdsl.run.launch import Training
from ssdsl.text.source import Source
from tests.simulate.steps import step, traffic
from tests.verify.conftest import HERE, captured

TRAINING = Training(2, optimizer="sgd", lr=0.1)
FLOAT = 4


def plan(axes: str, *splits: str) -> str:
    words = "".join(f"split model by {split}\n" for split in splits)
    return f"mesh gpus({axes})\n{words}assign model to gpus\n"


ROWS = plan("h = 2", "height into h")
THREE = plan("h = 3", "height into h")
TILES = plan("h = 2, w = 2", "height into h", "width into w")
BOTH = plan("dp = 2, h = 2", "batch into dp", "height into h")
IN_TIME = plan("dp = 2", "batch into dp", "height into t = 3")
IN_TURN = plan("dp = 1", "height into t = 2", "width into u = 2")
MIXED = plan("h = 2", "height into h", "width into t = 2")
MICRO = plan("h = 2", "batch into m = 2", "height into h")
CHANNELS = plan("h = 2, tp = 2", "height into h", "channels into tp")
UNEQUAL = plan("h = 3", "height into h = [5, 4, 4]")
NARROW = plan("h = 3", "height into h = [2, 10, 1]")  # of a kernel of 11
NARROW_IN_TIME = plan("dp = 1", "height into t = [2, 10, 1]")
STAGES = "let stage = balance(model, 2)\nassign stage[s] to gpus[pp = s] for s in 0..2\n"
FLOWING = plan("pp = 2", "batch into m = 2", "height into t = [3, 4, 6]").replace("assign model to gpus\n", STAGES)
IN_HALVES = FLOWING.replace("[3, 4, 6]", "3") + "order model.dgrad -> model.wgrad\n"
DEPTH = plan("d = 2, h = 2", "depth into d", "height into h")

CASES = [
    *(("unet", text) for text in (ROWS, THREE, TILES, BOTH, CHANNELS, IN_TIME)),
    *(("unet_transposed", text) for text in (THREE, TILES, IN_TIME, IN_TURN, MIXED, MICRO)),
    *(("unet3d", text) for text in (THREE, BOTH, DEPTH)),
    *(("stem", text) for text in (ROWS, THREE, TILES, BOTH, IN_TIME)),
    *(("wide", text) for text in (UNEQUAL, NARROW, TILES, IN_TIME, NARROW_IN_TIME, FLOWING)),
    *(("various", text) for text in (THREE, TILES, BOTH, IN_TURN)),
    ("chain", IN_HALVES),
]


def tried(model: str, text: str) -> Outcome:
    found, graph = captured(f"spatial.py:{model}")
    return try_plan(found, graph, text, TRAINING)


@pytest.mark.covering
@pytest.mark.parametrize(("model", "text"), CASES, ids=lambda word: word.split("assign")[0].replace("\n", "; "))
def test_numbers_are_those_of_one_device(model: str, text: str) -> None:
    outcome = tried(model, text)
    assert outcome.kind == "equal", outcome.text


def lowered(text: str, graph: Graph) -> Program:
    return lower(interpret_all(parse(Source("plan.ssp", text)), graph, {}, FOLDER)[0])


def test_everything_that_reads_windows_is_split() -> None:
    """Nothing is equal because it stayed whole."""
    for name in ("unet", "unet_transposed", "unet3d", "stem", "various"):
        _, graph = captured(f"spatial.py:{name}")
        program = lowered(ROWS, graph)
        ops = {i.operator: i for f in program.functions for s in f.sections for i in s.body if isinstance(i, OpPart)}
        for operator in (o for o in graph.operators if any(d.window is not None for d in o.dims)):
            assert ops[operator.name].kernel.function == operator.row.windows.partition("(")[0], operator.name
        for operator in (o for o in graph.operators if o.kind.endswith("_norm")):
            assert ops[operator.name].kernel.axes == ("h",)


@pytest.mark.parametrize("parts", [2, 3, 4])
def test_the_bytes_exchanged_are_the_halo(parts: int) -> None:
    """Two faces (one at the ends) x width x cross-section, forward and backward. The input's halo is no exchange."""
    exchanged = counts("chain", plan(f"h = {parts}", "height into h"))
    width, cross_section = 5 // 2, 4 * 3 * 8  # of the second layer: batch, channels, the width of the image
    for rank, count in exchanged.items():
        faces = 1 if rank in (0, parts - 1) else 2
        assert count["bytes"] == TRAINING.steps * 2 * faces * width * cross_section * FLOAT


def test_the_bytes_of_tiles_are_those_of_their_faces() -> None:
    """Rows first; then columns, of which those of the rows that have come are a part: the corners travel twice."""
    exchanged = counts("chain", TILES)
    width, batch, channels = 2, 4, 3
    rows, columns = width * (8 // 2), width * (12 // 2 + width)
    for count in exchanged.values():
        assert count["bytes"] == TRAINING.steps * 2 * batch * channels * (rows + columns) * FLOAT


def test_parts_narrower_than_the_kernel_reach_beyond_their_neighbours() -> None:
    """Of parts 2, 10, 1 of 13 rows: 11 rows are read, 5 before and behind; the last one needs 5 of the middle one."""
    exchanged = counts("wide", NARROW)
    cross_section = 4 * 3 * 8
    needed = [(0, 7), (0, 13), (7, 13)]
    own = [(0, 2), (2, 12), (12, 13)]
    for rank, count in exchanged.items():
        received = sum(1 for p in range(*needed[rank]) if p not in range(*own[rank]))
        added = sum(1 for other in range(3) if other != rank for p in range(*needed[other]) if p in range(*own[rank]))
        assert count["bytes"] == TRAINING.steps * (received + added) * cross_section * FLOAT


def counts(name: str, text: str) -> dict[int, dict[str, int]]:
    """What each rank received in exchanges."""
    model, graph = captured(f"spatial.py:{name}")
    finished = run_in_process(program_of(lowered(text, graph), model), TRAINING)
    return {rank: count["exchange"] for rank, count in finished.counts.items()}


@pytest.mark.parametrize("name", ["unet", "unet_transposed", "various"])  # batch, group and instance norms
def test_the_simulator_counts_what_is_exchanged(name: str) -> None:
    model, graph = captured(f"spatial.py:{name}")
    found = compile_source(Source("plan.ssp", ROWS), graph, {}, HERE)
    ran = run_in_process(program_of(found.program, model), TRAINING)
    simulated = traffic(step(found))
    for kind in ("all_reduce", "all_gather"):  # of an exchange it takes the most that a device receives for all
        entries = [counts[kind] for counts in ran.counts.values() if kind in counts]
        counted = tuple(sum(entry[word] for entry in entries) / TRAINING.steps for word in ("calls", "bytes"))
        assert simulated.get(kind, (0, 0)) == counted, kind


def test_a_second_index_where_windows_are_is_refused() -> None:
    outcome = tried("unet", plan("a = 2, b = 2", "width into a, b"))
    assert (outcome.kind, outcome.sign) == ("refused", "E0401")
    assert "parts that read windows" in outcome.text and "equal parts" not in outcome.text
