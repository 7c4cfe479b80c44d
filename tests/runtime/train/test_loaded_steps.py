"""Training on a loader's parts computes what training on the whole batches does."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from ssdsl.compile import compile_plan
from ssdsl.record import replace
from ssdsl.run.in_process.mailbox import Threaded
from ssdsl.run.in_process.run_in_process import program_of
from ssdsl.runtime.data.batch_spec import BatchSpec
from ssdsl.runtime.data.loader import Loader
from ssdsl.runtime.program.program import CompiledProgram
from ssdsl.runtime.ranks.world import World
from ssdsl.runtime.train.engine import Engine
from ssdsl.runtime.train.programs import InMemory
from tests.captured import captured
from tests.runtime.train.ranks import on_ranks

ROOT = Path(__file__).parents[3]


class Text(Dataset[dict[str, torch.Tensor]]):
    """Random words, and the next ones as labels."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return 20

    def __getitem__(self, key: int) -> dict[str, torch.Tensor]:
        words = torch.randint(0, 64, (self.length,), generator=torch.Generator().manual_seed(key))
        return {"input_ids": words, "labels": words}


@pytest.mark.parametrize("plan", ["data_parallel", "megatron", pytest.param("zero_bubble", marks=pytest.mark.slow)])
def test_parts_train_like_whole_batches(plan: str) -> None:
    model, graph = captured("gpt:tiny,hidden=32,seq=16,vocab=64")
    program = program_of(compile_plan(ROOT / "examples" / f"{plan}.ssp", graph, {}).program, model)
    samples, length = model.batches[0]["input_ids"].shape

    def losses(transport: Threaded, in_parts: bool) -> tuple[list[float], int]:
        engine = _engine(program, transport)
        inputs = engine.table.inputs
        pieces = engine.training.inputs if in_parts else BatchSpec.of(inputs, {}).wholes()
        feed = BatchSpec.of(inputs, pieces)
        loader = Loader(Text(length), feed, engine.control, batch_size=samples, shuffle=True, seed=1)
        found, elements = [], 0
        for part in loader.epochs(2):
            elements += sum(tensor.numel() for tensor in part.parts.values())
            found.append(engine.step(dict(part) if not in_parts else part))
        return found, elements

    count = program.table.world_size
    parts = on_ranks(count, lambda transport: losses(transport, True))
    wholes = on_ranks(count, lambda transport: losses(transport, False))
    assert len(parts[0][0]) == 2 * (20 // samples)
    assert all(part[0] == parts[0][0] == whole[0] for part, whole in zip(parts, wholes, strict=True))
    assert sum(part[1] for part in parts) <= sum(whole[1] for whole in wholes)


def _engine(program: CompiledProgram, transport: Threaded) -> Engine:
    own: Any = InMemory(replace(program, weights=program.weights.copy()))
    engine = Engine(own, World(transport), torch.device("cpu"), seed=0)
    engine.optimizer(torch.optim.SGD, lr=0.1)
    return engine
