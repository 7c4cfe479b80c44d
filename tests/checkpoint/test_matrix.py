"""A checkpoint that was saved under one plan is loaded under every other: each tensor equal to the bit.

Plans under which all ranks hold the same, such as schedules of one pipeline, are one layout; what any rank of any
layout holds is loaded from what each layout has saved, into the memory that an engine trains.
"""

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from ssdsl.compile import compile_plan
from ssdsl.model.load import load
from ssdsl.model.module_to_graph import capture
from ssdsl.record import replace
from ssdsl.run.in_process.mailbox import Mailboxes, Threaded
from ssdsl.run.in_process.run_in_process import RanksFailed, Turns, program_of
from ssdsl.runtime.checkpoints.content import Content, content_of
from ssdsl.runtime.checkpoints.loader import open_on_all, read_on_all
from ssdsl.runtime.checkpoints.reader import Checkpoint
from ssdsl.runtime.checkpoints.saver import Saver
from ssdsl.runtime.ranks.world import World
from ssdsl.runtime.step.parts import LocalTensor, untrained
from ssdsl.runtime.train.engine import Engine
from ssdsl.runtime.train.programs import InMemory
from tests.checkpoint.conftest import together

ROOT = Path(__file__).parent.parent.parent
IDLE = """
mesh gpus(pp = 3)
let stage = balance(model, 2)
assign stage[s] to gpus[pp = 2 * s] for s in 0..2
"""
UNEQUAL = """
mesh gpus(dp = 2, tp = 3)
split model by batch into dp
split model by heads into tp = [2, 1, 1]
split model by ffn into tp = [100, 27, 1]
split model by vocab into tp = [20, 4, 40]
assign model to gpus
split model.optimizer by row into dp
"""
TEXTS = {"idle": IDLE, "unequal": UNEQUAL}
MODELS = {"gpt": "gpt:tiny,layers=2,hidden=32,heads=4,vocab=64", "mixed": f"{ROOT}/tests/models/mixed.py:mixed"}
LATER = ".h."  # layers of gpt, whose weights are enough: their optimizer's state is left out
NOT_GPT = {
    "breadth_first",
    "experts",
    "spatial",
    "splitbrain",
    "tiles",
    "sketch",
    "three_f_one_b",
    "vocab_and_ffn",
}  # for other models, or below
PLANS = sorted(p.stem for folder in ("examples", "tests/verify/plans") for p in (ROOT / folder).glob("*.ssp"))
MORE: dict[str, list[tuple[str, dict[str, int]]]] = {
    "gpt": [
        *((plan, {}) for plan in PLANS if plan not in {*NOT_GPT, "portions"}),
        ("data_parallel", {"D": 1}),
        ("megatron", {"D": 2}),
        ("megatron", {"T": 4, "S": 2}),
        ("zero", {"Z": 2}),
        ("zero", {"Z": 3, "D": 8}),
        ("halves_everywhere", {"D": 2, "Z": 1}),
        ("halves_everywhere", {"D": 2, "Z": 3}),
        ("idle", {}),
        ("unequal", {}),
        ("breadth_first", {"V": 1}),
        ("portions", {}),
        ("sketch", {}),
    ],
    "mixed": [
        ("data_parallel", {"D": 1}),
        ("data_parallel", {}),
        ("tensor_parallel", {}),
        ("tensor_parallel", {"T": 8}),
        ("pipeline", {"M": 1}),
        ("recomputed", {}),
        ("stages", {}),
        ("swapped", {"M": 1}),
        ("zero", {"Z": 1}),
        ("zero", {"Z": 2, "D": 4}),
        ("zero", {"D": 3}),
        ("idle", {}),
    ],
}
Tensors = dict[tuple[str, ...], torch.Tensor]


def engines(compiled: Any, model: Any) -> list[Engine]:
    """The engine of each rank."""
    program, turns, found = program_of(compiled, model), Turns(), {}
    exchange = Mailboxes(program.table.world_size, turns.wait, RanksFailed)

    def make(rank: int) -> None:
        found[rank] = Engine(InMemory(program), World(Threaded(rank, exchange)), torch.device("cpu"))

    turns.run([lambda rank=rank: make(rank) for rank in range(exchange.count)])  # type: ignore[misc]
    return [found[rank] for rank in range(exchange.count)]


def content(engine: Engine, names: list[str], aliases: dict[str, str]) -> Content:
    """What a rank saves: weights and buffers where they are trained, and state of what its optimizer steps on."""
    held = engine.held()
    state: dict[str, dict[str, Any]] = {}
    trained = {name for flat in engine.weights.flats for name in flat.stepped()}
    for one in held:
        if one.name in trained and LATER not in one.name:
            state[one.name] = {"exp_avg": replace(one, tensor=torch.zeros_like(one.tensor))}
    unused = untrained(engine.table, engine.programs.state, names) if engine.rank == 0 else []
    return content_of([*held, *unused], state, {}, aliases=aliases)


def save(run: Path, ranks: list[Content]) -> None:
    ended = together(len(ranks), lambda c: Saver(c, background=False).save(run, 1, ranks[c.rank]))
    assert ended == [None] * len(ranks)


def part(held: LocalTensor, tensor: torch.Tensor) -> torch.Tensor:
    piece = held.piece.of(tensor)
    return piece if held.span is None else piece.reshape(-1)[slice(*held.span)]


def layout(ranks: list[Content]) -> Any:
    """What the ranks hold, without the tensors."""
    return tuple(tuple((path, h.piece, h.span, h.owns) for path, h in rank.tensors.items()) for rank in ranks)


def regions(layouts: Iterable[list[Content]]) -> list[dict[tuple[str, ...], LocalTensor]]:
    """What any rank of any layout holds, each region of a tensor once; in groups, of which each has a tensor once."""
    found: dict[tuple[str, ...], dict[Any, LocalTensor]] = {}
    for rank in (rank for ranks in layouts for rank in ranks):
        for path, held in rank.tensors.items():
            found.setdefault(path, {}).setdefault((held.piece, held.span), held)
    rows = [[(path, held) for held in cut.values()] for path, cut in found.items()]
    return [dict(filter(None, row)) for row in itertools.zip_longest(*rows)]


def reference(ranks: list[Content]) -> Tensors:
    """Numbers for each tensor in full, all different."""
    draw = torch.Generator().manual_seed(0)
    found: Tensors = {}
    for rank in ranks:
        for path, held in sorted(rank.tensors.items()):
            if path not in found:
                shape, dtype = held.piece.shape, held.tensor.dtype
                found[path] = torch.randn(shape, generator=draw, dtype=torch.float64).mul(1000).to(dtype)
    return found


@pytest.mark.parametrize(
    ("name", "every"), [("gpt", 3), *(pytest.param(name, 1, marks=pytest.mark.slow) for name in MORE)]
)
def test_every_plan_to_every_other(name: str, every: int, tmp_path: Path) -> None:
    model = load(MODELS[name])
    graph = capture(model)
    for plan, text in TEXTS.items():
        (tmp_path / f"{plan}.ssp").write_text(text)
    state = dict(model.module.state_dict())
    first: dict[int, str] = {}
    aliases = {n: first.setdefault(t.data_ptr(), n) for n, t in state.items() if t.numel()}
    aliases = {n: known for n, known in aliases.items() if n != known}
    layouts: dict[Any, list[Content]] = {}
    sizes = set()
    for plan, params in MORE[name][every // 2 :: every]:
        places = (ROOT / "examples", ROOT / "tests/verify/plans", tmp_path)
        path = next(p for folder in places if (p := folder / f"{plan}.ssp").exists())
        made = engines(compile_plan(path, graph, params).program, model)
        ranks = [content(engine, [n for n in state if n not in aliases], aliases) for engine in made]
        layouts.setdefault(layout(ranks), ranks)
        sizes.add(len(ranks))
    assert {1, 2, 3, 4, 8} <= sizes and len(layouts) >= 10
    expected = reference(next(iter(layouts.values())))
    for number, ranks in enumerate(layouts.values()):
        assert {path for rank in ranks for path in rank.tensors} == expected.keys()
        for rank in ranks:
            for path, held in rank.tensors.items():
                held.tensor.copy_(part(held, expected[path]))
        run = tmp_path / str(number)
        save(run, ranks)
        saved = Checkpoint.open(run)
        names = [path for path in expected if path[0] == "model"]
        assert (
            {p[1] for p in saved.tensors if p[0] == "model"} == {p[1] for p in names} | aliases.keys() == state.keys()
        )
        for path, tensor in expected.items():
            assert torch.equal(saved.whole(path), tensor), (number, path)
        for alias, known_as in aliases.items():
            assert torch.equal(saved.whole(("model", alias)), expected["model", known_as])
    for number in range(len(layouts)):
        saved = Checkpoint.open(tmp_path / str(number))
        for wanted in regions(layouts.values()):
            for held in wanted.values():
                held.tensor.zero_()
            saved.read(wanted)
            for path, held in wanted.items():
                assert torch.equal(held.tensor, part(held, expected[path])), (number, path)


def test_ranks_that_take_turns_save_and_load(tmp_path: Path) -> None:
    """With the words that an engine's ranks have, in memory; a save ends before `save` returns."""
    model = load(MODELS["mixed"])
    compiled = compile_plan(ROOT / "examples/zero.ssp", capture(model), {})
    program, turns = program_of(compiled.program, model), Turns()
    exchange = Mailboxes(program.table.world_size, turns.wait, RanksFailed)

    def run(rank: int) -> None:
        engine = Engine(InMemory(program), World(Threaded(rank, exchange)), torch.device("cpu"))
        before = [held.tensor.clone() for held in engine.held()]
        Saver(engine.control, background=False).save(tmp_path, 1, content_of(engine.held(), {}, {"steps": 1}))
        for held in engine.held():
            held.tensor.zero_()
        found = open_on_all(tmp_path, engine.control)
        read_on_all(found, {("model", held.name): held for held in engine.held()}, engine.control)
        assert found.facts["steps"] == 1
        assert all(torch.equal(held.tensor, was) for held, was in zip(engine.held(), before, strict=True))

    turns.run([lambda rank=rank: run(rank) for rank in range(exchange.count)])  # type: ignore[misc]
