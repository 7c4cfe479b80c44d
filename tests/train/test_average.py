"""An average of the weights over steps, of what each rank holds, is that of one device: also of half precision."""

from contextlib import contextmanager
from typing import Any

import pytest
import torch

from ssdsl.runtime.train.engine import Engine
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


def test_names_that_only_other_ranks_hold_are_left_out() -> None:
    def work(engine: Engine) -> bool:
        known = {name: tensor.clone() for name, tensor in engine.tensors().items()}
        engine.put({**dict.fromkeys(("up.weight", "head.bias"), torch.zeros(1)), **known})
        return all(torch.equal(tensor, known[name]) for name, tensor in engine.tensors().items())

    assert on_ranks("stages", work) == [True] * 2
