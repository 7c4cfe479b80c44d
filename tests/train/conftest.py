"""Engines whose ranks are threads: a model, a plan, and what each rank's training script does."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

from ssdsl.compile import compile_source
from ssdsl.lang.read import read_source
from ssdsl.lang.shipped import plan_path
from ssdsl.model.capture.initial_state import initial_state
from ssdsl.model.load.from_module import model_of
from ssdsl.model.load.model import Model, computing
from ssdsl.model.module_to_graph import capture
from ssdsl.record import replace
from ssdsl.run.in_process.run_in_process import program_of, run_ranks
from ssdsl.run.verify.assemble import assemble
from ssdsl.runtime.ranks.world import World
from ssdsl.runtime.train.engine import Engine
from ssdsl.runtime.train.observers import state
from ssdsl.runtime.train.programs import InMemory
from ssdsl.text.source import Source
from ssdsl.workspace import Compiled

CPU = torch.device("cpu")
IDLE = """mesh gpus(pp = 3)
let stage = balance(model, 2)
assign stage[s] to gpus[pp = 2 * s] for s in 0..2
"""
AXES = {"x": ("batch", "seq"), "y": ("batch", "seq")}
PLANS = {
    "one": ("data_parallel", {"D": 1}),
    "data": ("data_parallel", {"D": 2}),
    "tensor": ("tensor_parallel", {"T": 2}),
    "zero1": ("zero", {"D": 2, "Z": 1}),
    "zero3": ("zero", {"D": 3}),
    "stages": ("pipeline", {"S": 2, "M": 2}),
    "idle": (IDLE, {}),
}
Work = Callable[[Engine], Any]


class Net(torch.nn.Module):
    """Tied, frozen and unused weights, and a norm; returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = torch.nn.Embedding(48, 12)
        self.norm = torch.nn.LayerNorm(12)
        self.up = torch.nn.Linear(12, 24)
        self.down = torch.nn.Linear(24, 12)
        self.frozen = torch.nn.Linear(12, 12).requires_grad_(False)
        self.unused = torch.nn.Linear(12, 12)
        self.head = torch.nn.Linear(12, 48)
        self.head.weight = self.emb.weight

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = self.norm(self.emb(x))
        h = self.frozen(h + self.down(torch.relu(self.up(h))))
        return torch.nn.functional.cross_entropy(self.head(h).flatten(0, 1), y.flatten())


def batches(count: int = 4, samples: int = 12) -> list[dict[str, torch.Tensor]]:
    draw = torch.Generator().manual_seed(1)
    return [{name: torch.randint(0, 48, (samples, 5), generator=draw) for name in ("x", "y")} for _ in range(count)]


def net() -> Net:
    torch.manual_seed(0)
    return Net()


@lru_cache(maxsize=32)
def _compiled(plan: str, precision: str | None) -> tuple[Compiled, Model]:
    text, params = PLANS[plan]
    model = model_of(net(), batches(1)[0], AXES)
    model = replace(model, precision=precision)
    path = plan_path(text) if "\n" not in text else None
    source = read_source(path) if path is not None else Source("idle.ssp", text)
    return compile_source(source, capture(computing(model)), params, path.parent if path is not None else None), model


def on_ranks(plan: str, work: Work, precision: str | None = None) -> list[Any]:
    """What `work` gives with the engine of each rank of a plan for a fresh model."""
    compiled, model = _compiled(plan, precision)
    model = replace(model, module=net())
    program = program_of(compiled.program, model)

    def body(world: World, place: Any) -> Any:
        own = replace(program, weights=initial_state(model, compiled.program.graph))
        engine = Engine(InMemory(own), world, CPU, background=False)
        place(lambda: engine.training.runner.doing or "between tasks")
        found = work(engine)
        engine.close()
        return found

    return run_ranks(program.table.world_size, body)


def whole(ranks: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Tensors in full, from what ranks saved of them."""
    return assemble("weight", dict(enumerate(ranks))).tensors


def saved(engine: Engine) -> dict[str, Any]:
    """This rank's pieces of weights."""
    found = state(engine.weights, engine.pieces)
    return {**found["weights"], **found["buffers"]}
