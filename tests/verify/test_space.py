"""Networks of images and volumes split in space: on devices, in time, into unequal parts, with other splits."""

import pytest

from bench.fuzz.trial import Outcome, try_plan
from ssdsl.compile import compile_source
from ssdsl.ir.function import OpPart
from ssdsl.ir.value import Axis
from ssdsl.run.in_process.run_in_process import program_of, run_in_process
from ssdsl.runtime.options import Training
from ssdsl.text.source import Source
from tests.simulate.steps import step, traffic
from tests.verify.conftest import HERE, captured, program_of_text

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
NESTED = plan("node = 2, gpu = 2", "height into node, gpu")
REVERSED = plan("gpu = 3, node = 2", "height into node, gpu")  # the outer index is the inner axis of the mesh
APART = plan("node = 2, w = 2, gpu = 2", "height into node, gpu", "width into w")
DEEP = plan("a = 2, b = 2, c = 2", "height into c, a, b")
UNEQUAL_NODES = plan("node = 2, gpu = 2", "height into node = [8, 5], gpu")
OF_EACH = plan("node = 2, gpu = 2", "batch into m = 2", "height into node, gpu")
PIPED = plan("pp = 2, node = 2, gpu = 2", "height into node, gpu").replace("assign model to gpus\n", STAGES)
ACROSS = """mesh here(node = 2, gpu = 2)
mesh there(node = 3, gpu = 2)
split model["layers.0"] by height into node = 2, gpu
split model["layers.1"] by height into gpu, node = 3
assign model - model["layers.1"] to here
assign model["layers.1"] to there
"""
AGAIN = """mesh gpus(node = 2, gpu = 2)
split model["layers.0"] by height into node, gpu
split model["layers.1"] by height into node
split model["layers.1"] by channels into gpu where possible
assign model to gpus
"""
TURNED = AGAIN.replace("channels into gpu where possible", "width into gpu")
SHALLOW = plan("node = 2, gpu = 2", "depth into node, gpu where possible").replace(
    "assign", "split model[gpu = none] by channels into gpu where possible\nassign"
)

CASES = [
    *(("unet", text) for text in (ROWS, THREE, TILES, BOTH, CHANNELS, IN_TIME)),
    *(("unet_transposed", text) for text in (THREE, TILES, IN_TIME, IN_TURN, MIXED, MICRO)),
    *(("unet3d", text) for text in (THREE, BOTH, DEPTH)),
    *(("stem", text) for text in (ROWS, THREE, TILES, BOTH, IN_TIME)),
    *(("moved", text.replace("height", "length")) for text in (ROWS, THREE, BOTH, IN_TIME, NESTED)),
    *(("shifted", text) for text in (ROWS, THREE, TILES, BOTH, IN_TIME, NESTED)),
    *(("wide", text) for text in (UNEQUAL, NARROW, TILES, IN_TIME, NARROW_IN_TIME, FLOWING)),
    *(("various", text) for text in (THREE, TILES, BOTH, IN_TURN)),
    ("chain", IN_HALVES),
    ("unet", NESTED),
    *(("unet_transposed", text) for text in (NESTED, REVERSED, OF_EACH)),
    ("unet3d", SHALLOW),
    ("stem", NESTED),
    *(("various", text) for text in (NESTED, REVERSED)),
    *(("wide", text) for text in (NESTED, REVERSED, UNEQUAL_NODES)),
    *(("chain", text) for text in (APART, DEEP, PIPED, ACROSS, AGAIN, TURNED)),
]


def tried(model: str, text: str) -> Outcome:
    found, graph = captured(f"spatial.py:{model}")
    return try_plan(found, graph, text, TRAINING)


@pytest.mark.thinned(16)
@pytest.mark.parametrize(("model", "text"), CASES, ids=lambda word: word.split("assign")[0].replace("\n", "; "))
def test_numbers_are_those_of_one_device(model: str, text: str) -> None:
    outcome = tried(model, text)
    assert outcome.kind == "equal", outcome.text


def test_everything_that_reads_windows_is_split() -> None:
    """Nothing is equal because it stayed whole."""
    for name in ("unet", "unet_transposed", "unet3d", "stem", "various"):
        _, graph = captured(f"spatial.py:{name}")
        program = program_of_text(ROWS, graph)
        ops = {i.operator: i for f in program.functions for s in f.sections for i in s.body if isinstance(i, OpPart)}
        for operator in (o for o in graph.operators if any(d.window is not None for d in o.dims)):
            assert ops[operator.name].kernel.function == operator.row.windows.partition("(")[0], operator.name
        for operator in (o for o in graph.operators if o.kind.endswith("_norm")):
            assert ops[operator.name].kernel.axes == ("h",)


def test_windows_of_several_axes_are_of_one_coordinate() -> None:
    for name in ("unet", "unet_transposed", "stem", "various", "wide"):
        _, graph = captured(f"spatial.py:{name}")
        for op in (op for function in program_of_text(NESTED, graph).functions for op in function.operators()):
            assert {w.coordinate for w in op.kernel.windows} <= {Axis("node", ("gpu",))}
            if any(d.window is not None for d in graph.by_name[op.operator].dims):
                assert op.kernel.windows, op.operator


@pytest.mark.parametrize(
    ("parts", "text"), [*((n, plan(f"h = {n}", "height into h")) for n in (2, 3, 4)), (4, NESTED)], ids=str
)
def test_the_bytes_exchanged_are_the_halo(parts: int, text: str) -> None:
    """Two faces (one at the ends) x width x cross-section, forward and backward. The input's halo is no exchange. Cut
    by two axes, the neighbours are those of the whole row."""
    exchanged = counts("chain", text)
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
    finished = run_in_process(program_of(program_of_text(text, graph), model), TRAINING)
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


@pytest.mark.parametrize("split", ["width into a, t = 2", "width into t = 2, a"])
def test_an_index_in_time_beside_another_one_where_windows_are_is_refused(split: str) -> None:
    outcome = tried("unet", plan("a = 2", split))
    assert (outcome.kind, outcome.sign) == ("refused", "E0401")
    assert "parts that read windows" in outcome.text and "equal parts" not in outcome.text


def test_each_device_loads_its_rows_and_their_neighbours() -> None:
    """And not the whole image, of which it would cut them out."""
    model, graph = captured("spatial.py:chain")
    (entry,) = (e for role in program_of(program_of_text(NESTED, graph), model).table.roles for e in role.inputs)
    (take,) = entry.takes
    assert take.axis == (("node", 2), ("gpu", 2)) and take.parts == (((0, 4),), ((2, 7),), ((5, 10),), ((8, 12),))
