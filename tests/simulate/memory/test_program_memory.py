"""What the simulator says that a task keeps is what the generated program keeps, to the byte.

One rank's program runs in this process, with collectives that do nothing and receives that bring whatever is there:
tensors are as large as they are, only their numbers are wrong. Counted are the storages that operators make; the most
at once is counted by torch's allocator.
"""

import gc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.utils._pytree import tree_leaves

from ssdsl.analyse.program_index import ProgramIndex, flat_bytes
from ssdsl.codegen.write import write_program
from ssdsl.compile import compile_source
from ssdsl.run.in_process.alone import Alone
from ssdsl.runtime.profile.recorder import AllocatedMemory
from ssdsl.runtime.ranks.world import World
from ssdsl.runtime.step.rank_program import RankProgram
from ssdsl.runtime.step.runner import Block
from ssdsl.runtime.train.engine import Engine
from ssdsl.runtime.train.programs import InFolder
from ssdsl.simulate.memory.memory import Inputs
from ssdsl.text.source import Source
from ssdsl.workspace import Compiled
from tests.live_memory import LiveMemory
from tests.simulate.steps import activations, compiled, graph_of, model_of, step

RUNS = "models.py:runs"
TABLES = "tables.py:tables"
RECYCLES = "recycling.py:recycling_deep"
CPU = torch.device("cpu")
Bytes = dict[int, int]  # of storages, by their address
Task = tuple[str, int, tuple[int, ...]]  # the phase, the function, the part


class Watched:
    """One rank's program, a step of it, and what each of its tasks left alive."""

    def __init__(self, program: Compiled, rank: int, folder: Path, spec: str = RUNS) -> None:
        write_program(program.program, model_of(spec), folder, program.source)
        self.world = World(Alone(rank))
        self.share, self.prepared = _share(folder, self.world)
        self.left: list[tuple[Task, Bytes, Bytes]] = []  # before and after each task
        self.inputs: dict[Task, set[int]] = {}

    def most(self) -> int:
        """The most bytes that a step has at once, beside what is there before; gradients of weights are among them."""
        with AllocatedMemory(CPU) as memory, self.world.enter():
            self.share.runner.step(self.share.code.step, self.prepared)
        return memory.peak_bytes - memory.begun_bytes

    def step(self) -> None:
        runner = self.share.runner
        made = LiveMemory()
        for phase in ("forward", "backward", "backward_inputs", "backward_weights"):
            self._watch(phase, made)
        with made, self.world.enter():
            runner.step(self.share.code.step, self.prepared)

    def _watch(self, phase: str, made: LiveMemory) -> None:
        runner = self.share.runner
        run = getattr(runner, phase)

        def watched(block: Block, *reduces: list[int], **at: int) -> None:
            before = _now(made)
            run(block, *reduces, **at)
            task = phase, block.number, tuple(at.values())
            self.left.append((task, before, _now(made)))
            if phase == "forward":
                inputs = runner.saved.get((block.number, task[2]), ([], ()))[0]
                self.inputs[task] = {t.untyped_storage()._cdata for t in tree_leaves(inputs)}

        setattr(runner, phase, watched)

    def forward(self, block: int) -> int:
        """Bytes that a block's first forward left, with its inputs."""
        task, before, after = next(x for x in self.left if x[0][:2] == ("forward", block))
        return sum(n for address, n in after.items() if address not in before or address in self.inputs[task])

    def fresh(self, block: int) -> int:
        """Bytes that a block's first forward left and nobody had before, its inputs among them or not."""
        _, before, after = next(x for x in self.left if x[0][:2] == ("forward", block))
        return sum(n for address, n in after.items() if address not in before)

    def freed(self, phase: str) -> int:
        """Bytes that the last task of a phase set free."""
        _, before, after = next(x for x in reversed(self.left) if x[0][0] == phase)
        return sum(before.values()) - sum(after.values())


def _now(made: LiveMemory) -> Bytes:
    gc.collect()
    return dict(made.made)


def _share(folder: Path, world: World) -> tuple[RankProgram, dict[str, torch.Tensor]]:
    programs = InFolder(folder)
    with world.enter():
        engine = Engine(programs, world, CPU)
        engine.optimizer(torch.optim.SGD, lr=0.1)
        share = engine.training
        share.complete_gradients()
        batch = {name: piece.of(programs.batches[0][name]) for name, piece in share.inputs.items()}
        with torch.no_grad():
            return share, share.code.prepare(share.constants | batch, CPU)


@pytest.fixture
def watch(tmp_path: Path) -> Callable[..., Watched]:
    def run(plan: str, rank: int, spec: str = RUNS, **params: int) -> Watched:
        watched = Watched(compiled(plan, spec, **params), rank, tmp_path / "program", spec)
        gc.collect()
        gc.freeze()  # what is here already need not be looked through at every task
        watched.step()
        return watched

    return run


@pytest.mark.thinned(6)
@pytest.mark.parametrize(
    ("plan", "params", "ranks"),
    [
        ("zero", {"D": 2, "Z": 3}, 1),
        ("data_parallel", {"D": 2}, 1),
        ("tensor_parallel", {"T": 2}, 2),
        ("tensor_parallel", {"T": 4}, 1),
        ("sequence_parallel", {"T": 4}, 1),
        ("sequence_parallel", {"T": 2}, 2),
        ("pipeline", {"S": 2, "M": 2}, 2),
        ("recomputed_layers", {}, 1),
        ("recomputed", {}, 4),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_forward_keeps(watch: Callable[..., Watched], plan: str, params: dict[str, int], ranks: int) -> None:
    program = compiled(plan, RUNS, **params).program
    says = activations(program)
    rank = ranks - 1
    watched = watch(plan, rank, **params)
    here = [f for f in program.functions if rank in f.submesh.ranks()]
    assert here
    for function in here:
        assert watched.forward(function.number) == says.of(function).size_bytes, function.name


def test_what_lies_on_the_host(watch: Callable[..., Watched]) -> None:
    """Here the host's memory is that of the device, so both together are what a forward leaves."""
    (function,), says = compiled("on_host", RUNS).program.functions, activations(compiled("on_host", RUNS).program)
    kept = says.of(function)
    assert kept.host_bytes > 0.8 * activations(compiled("data_parallel", RUNS, D=2).program).of(function).size_bytes / 2
    assert watch("on_host", 0).forward(function.number) == kept.size_bytes + kept.host_bytes


@pytest.mark.parametrize(("plan", "params"), [("pipeline", {"S": 2, "M": 3}), ("recomputed_layers", {})])
def test_what_is_computed_from_weights_is_kept(
    watch: Callable[..., Watched], plan: str, params: dict[str, int]
) -> None:
    """With each micro-batch that computes it, unless that recomputes it; once what two stages read."""
    program = compiled(plan, TABLES, **params).program
    watched, says = watch(plan, 0, TABLES, **params), activations(program)
    for function in (f for f in program.functions if 0 in f.submesh.ranks()):
        assert watched.fresh(function.number) == says.of(function).size_bytes, function.name


@pytest.mark.parametrize(("plan", "params"), [("data_parallel", {"D": 2}), ("recomputed_trunk", {})])
def test_what_forwards_under_no_grad_leave(
    watch: Callable[..., Watched], tmp_path: Path, plan: str, params: dict[str, int]
) -> None:
    """Nothing: of three forwards the last one learns. While they run, they need no more than a few values."""
    found = compiled(plan, RECYCLES, **params)
    (function,), watched = found.program.functions, watch(plan, 0, RECYCLES, **params)
    assert watched.forward(function.number) == activations(found.program).of(function).size_bytes
    parts = dict(step(found, cluster="laptop").devices[0].peak_parts)
    simulated = sum(parts.get(part, 0) for part in ("activations", "scratch", "gradients", "transfers"))
    assert Watched(found, 0, tmp_path / "again", RECYCLES).most() < 1.04 * simulated


@pytest.mark.thinned(6)
@pytest.mark.parametrize("again", [0, 1])
def test_what_recycled_proteins_leave(watch: Callable[..., Watched], again: int) -> None:
    """Beside what the embedding gives, the trunk keeps what its last forward does."""
    program = compiled("papers/alphafold2_dap", "alphafold2:tiny,blocks=1", R=again).program
    watched, says = watch("papers/alphafold2_dap", 1, "alphafold2:tiny,blocks=1", R=again), activations(program)
    for function in program.functions:
        assert watched.fresh(function.number) == says.of(function).size_bytes, function.name


@pytest.mark.parametrize(
    ("params", "rank"),
    [({"D": 1, "H": 1}, 0), ({}, 3), ({"D": 1, "W": 2}, 3)],
    ids=lambda value: "".join(f"{k}{v}" for k, v in value.items()) if isinstance(value, dict) else "",
)
def test_what_blocks_of_a_volume_keep(watch: Callable[..., Watched], params: dict[str, int], rank: int) -> None:
    """Blocks with what their windows read beyond them, padded on one side where the volume ends, and the inputs.

    Of unequal parts the fullest is as large as the mean, which is rounded up."""
    program = compiled("spatial", "cosmoflow", **params).program
    ((function,), (role,)), watched = (program.functions, program.roles), watch("spatial", rank, "cosmoflow", **params)
    assert watched.forward(function.number) == activations(program).of(function).size_bytes
    loaded = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in watched.prepared.values()}
    assert Inputs(ProgramIndex(program)).of(role) == sum(loaded.values())


@pytest.mark.parametrize("plan", ["halves", "recomputed_halves"])
@pytest.mark.parametrize("rank", [0, 1])
def test_what_gradients_of_weights_wait_for(watch: Callable[..., Watched], plan: str, rank: int) -> None:
    program = compiled(plan, RUNS, M=2).program
    (function,) = (f for f in program.functions if rank in f.submesh.ranks())
    assert watch(plan, rank, M=2).freed("backward_weights") == activations(program).of(function).for_weights


@pytest.mark.covering
@pytest.mark.parametrize("again", [0, 1])
@pytest.mark.parametrize("tiles", [2, 6, 24])
def test_the_most_that_tiles_have_at_once(tmp_path: Path, tiles: int, again: int) -> None:
    """Within a fifth: what one operator of backward needs beside the largest gradients is not modelled, nor the copies
    that a convolution makes of its operands."""
    found = compiled("tiles", "models.py:rows", D=1, T=tiles, again=again)
    parts = dict(step(found).devices[0].peak_parts)
    simulated = sum(parts[part] for part in ("activations", "scratch", "gradients") if part in parts)
    measured = Watched(found, 0, tmp_path / "program", "models.py:rows").most()
    assert simulated == pytest.approx(measured, rel=0.2)


@pytest.mark.parametrize("rank", [0, 1])
def test_the_most_of_a_pipeline(tmp_path: Path, rank: int) -> None:
    """A forward with others in flight holds of its own what backward keeps, and no more than a few values beside."""
    found = compiled("megatron", "gpt:tiny", S=2, T=1, M=4)
    parts = dict(step(found, cluster="laptop").devices[rank].peak_parts)
    simulated = sum(parts.get(part, 0) for part in ("activations", "scratch", "gradients", "transfers"))
    measured = Watched(found, rank, tmp_path / "program", "gpt:tiny").most()
    assert simulated == pytest.approx(measured, rel=0.04)


@pytest.mark.parametrize("rank", [0, 2])
def test_the_most_of_weights_that_stay(tmp_path: Path, rank: int) -> None:
    """Whole weights of the running stage, and their whole gradients until these are reduced."""
    found = compiled("breadth_first", "gpt:small,vocab=64")
    role = rank // 2
    parts = dict(step(found, cluster="laptop").devices[role].peak_parts)
    flats = found.program.flats_of(found.program.roles[role])
    there = sum(flat_bytes(flat, flat.sharded.weights) for flat in flats)
    simulated = sum(parts[part] for part in ("weights", "activations", "scratch", "gradients", "transfers")) - there
    measured = Watched(found, rank, tmp_path / "program", "gpt:small,vocab=64").most()
    assert simulated == pytest.approx(measured, rel=0.04)


@pytest.mark.parametrize(
    ("plan", "model"),
    [
        ("tensor_parallel", "gpt:tiny,layers=4,vocab=64"),
        ("tensor_parallel", "swin:tiny"),
        ("sequence_parallel", "gpt:tiny,layers=4,vocab=64"),
    ],
)
def test_the_most_of_tensor_parallelism(tmp_path: Path, plan: str, model: str) -> None:
    """The gradient of what was summed, or gathered, is gone when it has gone on to what that was made of."""
    found = compiled(plan, model, T=2)
    parts = dict(step(found, cluster="laptop").devices[0].peak_parts)
    simulated = sum(parts.get(part, 0) for part in ("activations", "scratch", "gradients"))
    measured = Watched(found, 0, tmp_path / "program", model).most()
    assert simulated == pytest.approx(measured, rel=0.01)


@pytest.mark.covering
@pytest.mark.parametrize(
    ("plan", "params"), [("data_parallel", {}), ("zero", {"Z": 1}), ("zero", {"Z": 2}), ("zero", {"Z": 3})]
)
@pytest.mark.parametrize("model", ["gpt:tiny,layers=4,vocab=64", "gpt:small,vocab=64,seq=32"])
def test_the_most_of_data_parallelism(tmp_path: Path, plan: str, params: dict[str, int], model: str) -> None:
    """A bucket is there from its first gradient on, which moves into it. Gradients of gathered weights are whole until
    those of their layer are reduced."""
    found = compiled(plan, model, D=2, **params)
    parts = dict(step(found, cluster="laptop").devices[0].peak_parts)
    simulated = sum(parts.get(part, 0) for part in ("activations", "scratch", "gradients"))
    measured = Watched(found, 0, tmp_path / "program", model).most()
    assert simulated == pytest.approx(measured, rel=0.01)


@pytest.mark.covering
@pytest.mark.parametrize("slices", [2, 8])
@pytest.mark.parametrize("layers", ["kept", "recomputed"])
def test_slices_keep_keys_and_values_once(tmp_path: Path, layers: str, slices: int) -> None:
    """All slices together keep what the whole sequence does (but for one number of each slice's loss); recomputed
    layers also keep the keys and values that later slices read: views of one product with the queries."""
    model = "gpt:tiny,layers=4,vocab=64,seq=256,batch=1"
    recompute = 'recompute model["h.*"]\n' if layers == "recomputed" else ""

    def of(slices: int) -> Compiled:
        text = f"mesh gpus(dp = 1)\nsplit model by seq into t = {slices}\n{recompute}assign model to gpus\n"
        return compile_source(Source("slices.ssp", text), graph_of(model), {}, Path())

    def kept(found: Compiled) -> int:
        (function,), says = found.program.functions, activations(found.program)
        return sum(
            says.of(function, at).size_bytes for at in ([(k,) for k in range(slices)] if function.time else [()])
        )

    found = of(slices)
    products = 4 * 256 * 3 * 128 * 4 if recompute else 0
    assert 0 <= kept(found) - products - kept(of(1)) <= 8 * slices
    watched = Watched(found, 0, tmp_path / "program", model)
    gc.collect()
    gc.freeze()
    watched.step()
    last = [after for (phase, *_), _, after in watched.left if phase == "forward"][-1]
    assert sum(last.values()) == kept(found)
    parts = dict(step(found, cluster="laptop").devices[0].peak_parts)
    simulated = sum(parts.get(part, 0) for part in ("activations", "scratch", "gradients"))
    most = Watched(found, 0, tmp_path / "again", model).most()
    assert simulated == pytest.approx(most, rel=0.15 if recompute else 0.03)


@pytest.mark.parametrize("plan", ["data_parallel", "co_shard"])
def test_the_most_of_a_large_vocabulary(tmp_path: Path, plan: str) -> None:
    """The gradient of the scores is there twice, between the two operators of a cross-entropy."""
    model = "gpt:tiny,layers=1,vocab=4000"
    found = compiled(plan, model, D=1)
    parts = dict(step(found, cluster="laptop").devices[0].peak_parts)
    simulated = sum(parts.get(part, 0) for part in ("activations", "scratch", "gradients"))
    assert simulated == pytest.approx(Watched(found, 0, tmp_path / "program", model).most(), rel=0.01)


def test_the_most_of_parts_on_a_device(tmp_path: Path) -> None:
    """Gradients that nothing reduces come one by one, with the backward of their block."""
    model = "gpt:tiny,layers=4,vocab=64"
    found = compiled("co_shard", model, D=1, C=2)
    parts = dict(step(found, cluster="laptop").devices[0].peak_parts)
    simulated = sum(parts.get(part, 0) for part in ("activations", "scratch", "gradients"))
    assert simulated == pytest.approx(Watched(found, 0, tmp_path / "program", model).most(), rel=0.03)


@pytest.mark.parametrize("state", ["weights", "optimizer", "grads"])
def test_the_most_of_nested_shards(tmp_path: Path, state: str) -> None:
    finer = "" if state == "weights" else f"split model.{state} by row into node, gpu\n"
    text = "mesh gpus(node = 2, gpu = 2)\nsplit model by batch into node, gpu, m = 2\nassign model to gpus\n"
    text += "split model.weights by row into gpu\n" + finer
    model = "gpt:tiny,layers=8,vocab=64"
    found = compile_source(Source("nested.ssp", text), graph_of(model), {}, Path())
    parts = dict(step(found, cluster="laptop").devices[0].peak_parts)
    simulated = sum(parts.get(part, 0) for part in ("activations", "scratch", "gradients"))
    measured = Watched(found, 0, tmp_path / "program", model).most()
    assert simulated == pytest.approx(measured, rel=0.03)
