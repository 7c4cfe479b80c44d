"""An average of the weights over steps, of what each rank holds, is that of one device: also of half precision."""

from contextlib import contextmanager
from typing import Any

import pytest
import torch

from ssdsl.compile import compile_source
from ssdsl.lang.read import read_source
from ssdsl.lang.shipped import plan_path
from ssdsl.model.load.from_module import model_of
from ssdsl.model.load.model import computing
from ssdsl.model.module_to_graph import capture
from ssdsl.run.in_process.run_in_process import program_of, run_ranks
from ssdsl.runtime.ranks.world import World
from ssdsl.runtime.train.engine import Engine
from ssdsl.runtime.train.programs import InMemory
from tests.train.conftest import batches, net, on_ranks, saved, whole

KEEP = 0.6


@contextmanager
def averaged(engine: Engine, average: dict[str, torch.Tensor]) -> Any:
    before = {name: held.clone() for name, held in engine.tensors().items()}
    engine.put(average)
    yield
    engine.put(before)


def average_of(engine: Engine) -> Any:
    """Losses of training, one in the middle with the average in place, and the weights of the average."""
    engine.optimizer(torch.optim.SGD, lr=0.5)
    average = {name: held.clone() for name, held in engine.tensors().items()}
    losses = []
    for batch in batches(3):
        losses.append(engine.step(batch))
        for name, held in engine.tensors().items():
            average[name].lerp_(held, 1 - KEEP)
    with averaged(engine, average):
        losses.append(engine.step(batches(1)[0], update=False))
        weights = {name: {**piece, "tensor": piece["tensor"].clone()} for name, piece in saved(engine).items()}
    losses.append(engine.step(batches(1)[0]))
    return losses, weights


def alone() -> tuple[list[float], dict[str, torch.Tensor]]:
    module, average = net(), net()
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.5)
    losses = []
    for batch in batches(3):
        optimizer.zero_grad()
        loss = module(**batch)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        with torch.no_grad():
            for mine, other in zip(average.parameters(), module.parameters(), strict=True):
                mine.lerp_(other, 1 - KEEP)
    losses += [float(average(**batches(1)[0]).detach()), float(module(**batches(1)[0]).detach())]
    return losses, {name: p.detach() for name, p in average.named_parameters()}


@pytest.mark.parametrize("plan", ["data", "tensor", "zero1", "zero3", "stages", "idle"])
def test_an_average_may_take_the_place_of_the_weights(plan: str) -> None:
    ranks, (losses, weights) = on_ranks(plan, average_of), alone()
    assert all(rank[0] == ranks[0][0] for rank in ranks)
    torch.testing.assert_close(ranks[0][0], losses, rtol=1e-5, atol=1e-6)
    for name, tensor in whole([rank[1] for rank in ranks]).items():
        torch.testing.assert_close(tensor, weights[name], rtol=1e-5, atol=1e-6)


def test_masters_are_given_back_to_the_bit() -> None:
    def work(engine: Engine) -> Any:
        engine.optimizer(torch.optim.SGD, lr=1e-4)
        engine.step(batches(1)[0])
        before = {name: held.clone() for name, held in engine.tensors().items()}
        computing = [held.tensor.clone() for held in engine.held()]
        with averaged(engine, {name: torch.zeros_like(held) for name, held in before.items()}):
            zero = all(not held.tensor.any() for held in engine.held())
        after = engine.tensors()
        kept = all(torch.equal(after[name], held) for name, held in before.items())
        kept &= all(map(torch.equal, computing, [held.tensor for held in engine.held()]))
        return zero, kept, any(held.dtype == torch.float32 for held in before.values())

    assert on_ranks("data", work, "bf16") == [(True, True, True)] * 2


@pytest.mark.parametrize("plan", ["data", "tensor"])
def test_all_of_the_model_has_a_tensor(plan: str) -> None:
    """Also the weights that nothing reads; of a tied one the first name."""
    names = set(dict(net().named_parameters()))
    assert on_ranks(plan, lambda engine: set(engine.tensors()) == names) == [True] * 2


class Frozen(torch.nn.Module):
    """A batch norm whose statistics are those of another data set."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm = torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2).eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.fc(x)).square().mean()  # type: ignore[no-any-return]


def test_statistics_of_a_frozen_norm_are_put() -> None:
    torch.manual_seed(0)
    module, batch = Frozen(), {"x": torch.randn(4, 3)}
    model = model_of(module, batch, {"x": ("batch", "feature")})
    compiled = compile_source(read_source(plan_path("data_parallel")), capture(computing(model)), {"D": 2}, None)
    put = {"norm.running_mean": torch.ones(2), "norm.running_var": torch.full((2,), 4.0)}

    def work(world: World, place: Any) -> Any:
        program = program_of(compiled.program, model)
        engine = Engine(InMemory(program), world, torch.device("cpu"), background=False)
        engine.optimizer(torch.optim.SGD, lr=0.0)
        engine.put({**engine.tensors(), **put})
        kept = all(torch.equal(engine.tensors()[name], tensor) for name, tensor in put.items())
        return kept, engine.step(batch)

    found = run_ranks(2, work)
    module.load_state_dict({**module.state_dict(), **put})
    assert found == [(True, pytest.approx(float(module(**batch).detach())))] * 2


def test_names_that_only_other_ranks_hold_are_left_out() -> None:
    def work(engine: Engine) -> bool:
        known = {name: tensor.clone() for name, tensor in engine.tensors().items()}
        engine.put({**dict.fromkeys(("up.weight", "head.bias"), torch.zeros(1)), **known})
        return all(torch.equal(tensor, known[name]) for name, tensor in engine.tensors().items())

    assert on_ranks("stages", work) == [True] * 2
