"""A number that is not finite is traced to its origin, on all ranks alike, under each kind of plan."""

import math
import re
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from ssdsl.compile import compile_source
from ssdsl.lang.read import read_source
from ssdsl.lang.shipped import plan_path
from ssdsl.model.capture.initial_state import initial_state
from ssdsl.model.graph import Graph
from ssdsl.model.load.from_module import model_of
from ssdsl.model.load.model import Model
from ssdsl.model.module_to_graph import capture
from ssdsl.record import replace
from ssdsl.run.in_process.run_in_process import program_of, run_ranks
from ssdsl.runtime.errors import EngineError
from ssdsl.runtime.ranks.world import World
from ssdsl.runtime.train.engine import Engine
from ssdsl.runtime.train.programs import InMemory
from ssdsl.text.source import Source
from tests.train.conftest import batches
from tests.train.conftest import on_ranks as on_ranks_in

RECOMPUTED = """use pipeline: zb_h1
mesh gpus(pp = 2)
split model by batch into m = 4
let stage = balance(model, 2)
assign stage[s] to gpus[pp = s] for s in 0..2
recompute model
zb_h1(stage, 4)
"""
PLANS: dict[str, tuple[str, dict[str, int]]] = {
    "data": ("data_parallel", {"D": 2}),
    "tensor": ("tensor_parallel", {"T": 2}),
    "stages": ("pipeline", {"S": 2, "M": 2}),
    "halves": ("zero_bubble", {"S": 2, "M": 4}),
    "zero1": ("zero", {"D": 2, "Z": 1}),
    "zero3": ("zero", {"D": 2, "Z": 3, "M": 2, "R": 1}),
    "again": (RECOMPUTED, {}),
}
AXES = {"x": ("batch", "seq", "hidden"), "y": ("batch", "seq")}
Act = Callable[[Engine], Any]


class Layer(torch.nn.Module):
    """An MLP with a logarithm, and with a square root whose derivative is infinite at 0."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(8)
        self.up, self.down = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)
        self.logged, self.rooted = torch.nn.Parameter(torch.ones(8)), torch.nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.down(F.gelu(self.up(self.norm(x))))
        return x + torch.log(2 + self.logged * torch.tanh(h)) + torch.sqrt(torch.relu(self.rooted) * h**2)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer() for _ in range(4))
        self.head = torch.nn.Linear(8, 12)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), y.flatten())


class Masked(torch.nn.Module):
    """Attends to what a mask leaves, of which exponentials may overflow."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.norm = torch.nn.Parameter(torch.ones(8)), torch.nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        scores = (x * self.scale).masked_fill(y == 0, -torch.inf)
        weights = scores.softmax(-1) + torch.exp(self.scale)
        return (self.norm(weights) * self.scale).square().sum(-1).mean()


class Mean(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.full((8,), 0.01))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x * self.scale * y).sum(-1).mean()


def batch() -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    return {"x": torch.randn(8, 4, 8, generator=draw), "y": torch.randint(0, 12, (8, 4), generator=draw)}


def masked() -> dict[str, torch.Tensor]:
    keep = torch.ones(8, 8, dtype=torch.int64)
    keep[:, ::2] = 0
    return {"x": torch.ones(8, 8), "y": keep}


@cache
def captured(net: type[torch.nn.Module]) -> tuple[Model, Graph]:
    torch.manual_seed(0)
    given, axes = (batch(), AXES) if net is Net else (masked(), {"x": ("batch", "keys"), "y": ("batch", "keys")})
    model = model_of(net(), given, axes)
    return model, capture(model)


@cache
def compiled(plan: str, net: type[torch.nn.Module]) -> Any:
    name, params = PLANS[plan]
    path = plan_path(name) if "\n" not in name else None
    source = read_source(path) if path is not None else Source("again.ssp", name)
    return compile_source(source, captured(net)[1], params, path.parent if path is not None else None).program


def on_ranks(plan: str, act: Act, net: type[torch.nn.Module] = Net) -> list[Any]:
    """What `act` gives on each rank with an engine of its own."""
    model = captured(net)[0]
    program = program_of(compiled(plan, net), model)

    def body(world: World, place: Any) -> Any:
        own = replace(program, weights=initial_state(model, compiled(plan, net).graph))
        engine = Engine(InMemory(own), world, torch.device("cpu"), background=False)
        engine.optimizer(torch.optim.SGD, lr=0.1)
        found = act(engine)
        engine.close()
        return found

    return run_ranks(program.table.world_size, body)


def told(plan: str, act: Act, net: type[torch.nn.Module] = Net) -> str:
    """What all ranks are told, alike."""

    def says(engine: Engine) -> str:
        with pytest.raises(EngineError) as error:
            act(engine)
        return str(error.value)

    found = on_ranks(plan, says, net)
    assert found == [found[0]] * len(found)
    return str(found[0])


def spoil(engine: Engine, name: str, value: float, at: int = 5) -> None:
    """Overwrites an element of a weight, on the ranks that have it."""
    for held in engine.held():
        if held.name == name:
            start = 0 if held.span is None else held.span[0]
            if 0 <= at - start < held.tensor.numel():
                held.tensor.view(-1)[at - start] = value
    engine.complete()


def step(engine: Engine, given: dict[str, torch.Tensor] | None = None, **options: Any) -> float:
    return engine.step(batch() if given is None else given, find_nan=True, **options)


# -- what the step was given -------------------------------------------------------------------------------------------


def an_input(plan: str) -> None:
    def act(engine: Engine) -> None:
        step(engine)
        given = batch()
        given["x"][5, 2, 3] = torch.nan
        step(engine, given)

    text = told(plan, act)
    rank = 1 if plan in ("data", "zero1", "zero3") else 0
    assert text.startswith(
        "the loss of step 1 is nan; nothing was updated\n  input `x` is NaN at batch 5, seq 2, hidden 3"
    )
    assert (
        f"elements), on rank {rank}\n  first read by `layer_norm` in module `layers.0.norm` (test_find_nan.py:" in text
    )
    at = {"stages": ", at m = 1\n", "halves": ", at m = 2\n", "again": ", at m = 2\n", "zero3": ", at m = 0\n"}.get(
        plan, ")\n"
    )
    assert at in text
    assert "correct the data" in text and "learning rate" not in text


def a_weight(plan: str) -> None:
    def act(engine: Engine) -> None:
        step(engine)
        spoil(engine, "layers.1.down.weight", torch.inf)
        step(engine)

    text = told(plan, act)
    assert "\n  weight `layers.1.down.weight` is infinite at [0, 5] (1 of " in text.partition("made the first")[0]
    assert "it was changed after the update of step 0, which left it finite" in text
    assert "first read by `linear` in module `layers.1.down`" in text


def test_without_the_option_the_error_looks_at_what_was_given() -> None:
    def data(engine: Engine) -> None:
        given = batch()
        given["x"][5, 2, 3] = torch.nan
        engine.step(given)

    def weight(engine: Engine) -> None:
        engine.step(batch())
        spoil(engine, "layers.1.down.weight", torch.nan)
        engine.step(batch())

    def operator(engine: Engine) -> None:
        spoil(engine, "layers.1.logged", 1000.0)
        engine.step(batch())

    text = told("stages", data)
    assert "\n  input `x` is NaN at batch 5, seq 2, hidden 3" in text and "learning rate" not in text
    text = told("stages", weight)
    assert (
        "\n  weight `layers.1.down.weight` is NaN at [0, 5]" in text and "since the update of step 0, or before" in text
    )
    text = told("stages", operator)
    assert "the batch and the weights are finite" in text and "`find_nan=True`, `--find-nan`" in text


# -- what an operator made ---------------------------------------------------------------------------------------------


def an_operator_of_the_forward(plan: str) -> None:
    def act(engine: Engine) -> None:
        spoil(engine, "layers.2.logged", 1000.0)
        step(engine)

    text = told(plan, act)
    rank = 1 if plan in ("stages", "halves", "again") else 0
    assert re.search(
        r"\n  `log` in module `layers.2` \(test_find_nan.py:\d+; \w+.ssp:\d+: .*\) made the first NaN, in forward", text
    )
    assert re.search(rf", on rank {rank}\n  of operands in \[-\d", text)
    assert (", at m = 0" in text) == (plan in ("stages", "halves", "again", "zero3"))


def an_operator_of_the_backward(plan: str) -> None:
    def act(engine: Engine) -> None:
        spoil(engine, "layers.1.rooted", 0.0)
        step(engine)

    text = told(plan, act)
    assert text.startswith("a gradient of step 0 is not finite; nothing was updated\n  `sqrt` in module `layers.1` (")
    assert "made the first infinity, in backward" in text
    assert re.search(r"`\w+` in module `layers.1` .* made the first NaN, in backward", text)
    assert "it reaches the gradient of `layers." in text and "derivative" in text


@pytest.mark.covering
@pytest.mark.parametrize("origin", [an_input, a_weight, an_operator_of_the_forward, an_operator_of_the_backward])
@pytest.mark.parametrize("plan", PLANS)
def test_it_is_found_under_each_plan(plan: str, origin: Callable[[str], None]) -> None:
    origin(plan)


def test_infinities_of_a_mask_are_no_mistake_until_they_make_nan() -> None:
    def fine(engine: Engine) -> float:
        return engine.step(masked(), find_nan=True)

    def all_masked(engine: Engine) -> None:
        given = masked()
        given["y"][6] = 0
        engine.step(given, find_nan=True)

    def overflow(engine: Engine) -> None:
        spoil(engine, "scale", 100.0, at=3)
        engine.step(masked(), find_nan=True)

    assert math.isfinite(on_ranks("data", fine, Masked)[0])
    text = told("data", all_masked, Masked)
    first, _, rest = text.partition("of infinities that may be meant:")
    assert "`softmax` in the model (" in first and "made the first NaN, in forward, on rank 1" in first
    assert "`masked_fill` in the model" in rest
    text = told("data", overflow, Masked)
    assert re.search(r"`exp` in the model .* made the first infinity, in forward", text) and "softmax" not in text


def test_a_sum_over_ranks_that_overflows() -> None:
    given = {"x": torch.full((8, 8), 4.0), "y": torch.ones(8, 8, dtype=torch.int64)}
    text = told("data", lambda engine: step(engine, given, scale=1.2e38), Mean)  # 2.4e38 on each of two ranks
    assert "\n  all_reduce over dp (ranks 0, 1) for weight `scale`; data_parallel.ssp:" in text
    assert "made the first infinity: a sum of numbers that are finite" in text


def test_an_update_that_overflows() -> None:
    def act(engine: Engine) -> None:
        engine.optim.param_groups[0]["lr"] = 3e38
        step(engine, scale=100.0)

    text = told("stages", act)
    assert text.startswith("the update of step 0 made a weight that is not finite\n  weight `")
    assert "its gradients were finite; the learning rate is 3e+38" in text


# -- what is left ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", ["data", "zero1"])
def test_training_goes_on_after_the_error_as_if_nothing_had_been(plan: str) -> None:
    def act(engine: Engine, *, fails: bool) -> tuple[list[float], Any, Any]:
        losses = [engine.step(masked())]
        if fails:
            given = masked()
            given["y"][6] = 0
            with pytest.raises(EngineError):
                step(engine, given)
        losses += [step(engine, masked()) for _ in range(2)]
        return losses, dict(engine.weights.buffers), engine.steps

    (losses, buffers, steps), (expected, own, _) = (
        on_ranks(plan, partial(act, fails=fails), Masked)[0] for fails in (True, False)
    )
    assert losses == expected and steps == 3
    assert buffers and all(torch.equal(buffers[name], own[name]) for name in own)


def test_numbers_that_differ_from_run_to_run_are_told_so() -> None:
    def act(engine: Engine) -> None:
        once = [True]

        def watch() -> None:
            gradient = next(iter(engine.weights.tensors.values())).grad
            if gradient is not None and once:
                gradient.fill_(torch.nan)
                once.clear()

        engine.watch_gradients(watch)
        step(engine)

    assert "they differ from run to run" in told("data", act)


def test_an_overflow_of_scaled_gradients_is_no_mistake() -> None:
    def act(engine: Engine) -> tuple[bool, int]:
        assert engine.scaler is not None
        engine.scaler.scale = 2.0**60
        engine.optimizer(torch.optim.SGD, lr=0.1)
        return math.isfinite(step(engine, batches(1)[0])), engine.scaler.skipped

    assert on_ranks_in("data", act, "fp16") == [(True, 1)] * 2


def test_it_does_not_go_with_allow_nan() -> None:
    assert "give one of them" in told("data", lambda engine: step(engine, allow_nan=True))


def test_accumulated_gradients_are_looked_at_in_each_batch() -> None:
    def act(engine: Engine) -> None:
        step(engine, update=False)
        spoil(engine, "layers.1.rooted", 0.0)
        step(engine, update=False)

    assert told("data", act).startswith("a gradient of step 1 is not finite")
