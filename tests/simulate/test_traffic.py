"""Bytes and calls of a simulated step are those that ranks count at run time (tests/verify/test_communication.py).

Both count the whole tensor: what an all_reduce sums, an all_gather returns, a reduce_scatter is given; the simulator
for all devices together, a rank for itself. What is done once with the batch before the first task is not in a
simulated step: counting the valid labels, gathering labels that are split along the sequence.
"""

from math import prod

import pytest

from bench.fuzz.trial import SLOW
from ssdsl.compile import compile_source
from ssdsl.model.load.model import Model
from ssdsl.run.in_process.run_in_process import program_of, run_in_process
from ssdsl.runtime.options import Training
from ssdsl.text.source import Source
from ssdsl.workspace import Compiled
from tests.simulate.steps import ROOT, compiled, graph_of, model_of, step, traffic
from tests.verify.test_communication import COUNT, LEDGER, Row, added

BEFORE_TASKS = ("the number of valid labels", "labels, shifted in parts of the sequence")
PLANS = dict.fromkeys(name.partition(" rank ")[0] for name in LEDGER)


def ledger(plan: str, devices: int) -> dict[str, tuple[int, int]]:
    """Calls and bytes of all devices."""
    rows: list[Row] = []
    for rank in range(devices):
        rows += LEDGER.get(f"{plan} rank {rank}") or LEDGER[plan]
    assert COUNT.why in BEFORE_TASKS
    return added(tuple(row for row in rows if row.why not in BEFORE_TASKS))


@pytest.mark.parametrize("plan", PLANS)
def test_ledger(plan: str) -> None:
    name, _, setting = plan.partition(" ")
    param, _, value = setting.partition("=")
    built = compiled(name, "gpt:tiny", **({param: int(value)} if param else {}))
    assert traffic(step(built, cluster="h200x8")) == ledger(plan, built.plan.devices)


ZERO = (ROOT / "examples" / "zero.ssp").read_text()
OF_LAYERS = 'recompute model["{}.*"]\n'
OF_TWO_AXES = """\
mesh gpus(dp = 2, tp = 2)
split model by batch into dp
split {}
split model.weights by row into dp
assign model to gpus
"""


def counted(built: Compiled, model: Model) -> dict[str, tuple[int, int]]:
    """Calls and bytes of all ranks in a step that is run."""
    finished = run_in_process(program_of(built.program, model), Training(1, optimizer="sgd", lr=0.1))
    found: dict[str, tuple[int, int]] = {}
    for kind, one in (item for counts in finished.counts.values() for item in counts.items()):
        calls, size = found.get(kind, (0, 0))
        found[kind] = calls + one["calls"], size + one["bytes"]
    return found


@pytest.mark.parametrize("again", ["", OF_LAYERS], ids=["kept", "recomputed"])
@pytest.mark.parametrize(("name", "layers"), [("recycling", "trunk"), ("stopped", "layers"), ("borrowed", "layers")])
def test_sharded_weights_as_their_program_gathers_them(name: str, layers: str, again: str) -> None:
    """Each call of a layer gathers for itself, and no gradient is scattered of what was gathered under `no_grad`."""
    spec = f"{name}.py:{name}"
    built = compile_source(Source("zero.ssp", ZERO + again.format(layers)), graph_of(spec), {"Z": 3}, ROOT)
    found = counted(built, model_of(spec))
    assert set(found) == {"all_gather", "reduce_scatter"}
    assert traffic(step(built)) == found


@pytest.mark.parametrize("again", ["", OF_LAYERS], ids=["kept", "recomputed"])
@pytest.mark.parametrize(
    "split",
    [
        'model["layers.*"] by inputs into tp',  # columns of a borrowed weight: copied, and passed on to the layers
        'model["layers.*"] by hidden into tp',  # rows: passed on as a view, of which backward gathers the whole again
        'model["first"] by inputs into tp',
        'model["layers.*"] by inputs into m = 2',  # a part in time is a view, whichever way it is cut
        'model["layers.*"] by hidden into tp, m = 2',
        'model - model["first"] by inputs into tp, m = 2',
    ],
)
def test_parts_of_sharded_weights(split: str, again: str) -> None:
    """What is made of a weight for several layers is gathered for once; what was copied is not gathered again."""
    spec = "borrowed.py:borrowed"
    plan = OF_TWO_AXES.format(split) + again.format("layers")
    built = compile_source(Source("parts.ssp", plan), graph_of(spec), {}, ROOT)
    assert traffic(step(built)) == counted(built, model_of(spec))


HYBRID = """\
mesh gpus(node = 2, gpu = 2)
split model by batch into node, gpu, m = {}
{}
assign model to gpus
"""


@pytest.mark.parametrize(
    "state",
    [
        "split model.weights by row into gpu",
        "split model.grads by row into gpu",
        "split model.optimizer by row into gpu",
        "split model.weights by row into gpu\nsplit model.optimizer by row into node, gpu",
        "split model.grads by row into gpu\nsplit model.optimizer by row into node, gpu",
    ],
)
def test_nodes_exchange_a_shard_of_each_gradient_once_a_step(state: str) -> None:
    """Replicas of shards (HSDP), or finer parts of the optimizer's state: forward nothing goes between nodes, and
    backward as much for two micro-batches as for one."""
    spec = "borrowed.py:borrowed"
    plans = (compile_source(Source("hsdp.ssp", HYBRID.format(m, state)), graph_of(spec), {}, ROOT) for m in (1, 2))
    between = []
    for built in plans:
        found = counted(built, model_of(spec))
        assert traffic(step(built)) == found
        flats = [*built.program.flats]
        sums = [s for f in flats for s in f.completion.once if s.axes == ("node",)]
        between.append(found["all_reduce"][1] if "node, gpu" not in state else len(sums))
        assert len(sums) == len(flats)
    assert between[0] == between[1]


@pytest.mark.parametrize("state", ["", "weights", "grads", "optimizer"])
def test_copies_reduce_a_part_each(state: str) -> None:
    """Copies in a node gather what each has summed with other nodes: half of the gradient, or of a shard of it."""
    spec, plan = "borrowed.py:borrowed", "mesh gpus(node = 2, gpu = 2, d = 2)\nsplit model by batch into node, gpu\n"
    plan += f"split model.{state} by row into gpu\n" if state else ""
    source = Source("copies.ssp", f"{plan}assign model to gpus\n")
    plain, shared = (compile_source(source, graph_of(spec), {}, ROOT, cluster) for cluster in (None, SLOW))
    found, before = counted(shared, model_of(spec)), counted(plain, model_of(spec))
    assert traffic(step(shared, cluster=SLOW)) == found
    assert found["all_reduce"][1] == before["all_reduce"][1] // 2
    gathered = before.get("all_gather", (0, 0))[1] + before["all_reduce"][1]
    assert found["all_gather"][1] == gathered


def test_batch_norm_sums_its_statistics() -> None:
    """Two sums over the channels forward, one of both gradients backward; and once the gradients."""
    built = compiled("data_parallel", "convnet.py:unet", D=2)
    norms = [o for o in built.program.graph.operators if o.kind == "batch_norm"]
    values = built.program.graph.values
    channels = sum(values[o.inputs[0].value].shape[1] for o in norms)
    weights = sum(v.itemsize * prod(v.shape) for v in values.values() if v.origin == "weight")
    calls, size = traffic(step(built))["all_reduce"]
    assert norms and (calls, size) == (2 * (3 * len(norms) + 1), 2 * (4 * channels * 4 + weights))


def test_levels() -> None:
    """What stays in a node of 8 is told from what leaves it, and stands before it."""
    program = compiled("wide_pipeline", "models.py:chain_of_8", D=8, S=2, M=2)
    report = step(program)
    found = [(t.kind, t.level) for t in report.traffic]
    assert found == [("all_reduce", "node"), ("send", "cluster")]


@pytest.mark.parametrize("again", ["", 'recompute model["h.*.mlp"]\n', 'recompute model["h.*.attn"]\n'])
def test_a_layer_that_is_recomputed_in_part_gathers_each_weight_as_often_as_a_whole_one(again: str) -> None:
    """Where recomputation divides a layer into several sections, each gathers the weights that it reads, not all."""
    spec = "gpt:tiny,layers=2"
    graph = graph_of(spec)
    whole, parted = (
        traffic(step(compile_source(Source("zero.ssp", ZERO + text), graph, {"Z": 3}, ROOT))) for text in ("", again)
    )
    assert {kind: size for kind, (_, size) in parted.items()} == {kind: size for kind, (_, size) in whole.items()}
