"""Several losses, each with optimizers of its own: the losses and weights of the same loop in plain PyTorch."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ssdsl.lang.shipped import plan_path
from ssdsl.model.load.from_module import model_of
from ssdsl.run.in_process.run_in_process import RanksFailed, run_ranks
from ssdsl.run.rank0_compiler import Live
from ssdsl.runtime.errors import EngineError
from ssdsl.runtime.ranks.world import World
from ssdsl.runtime.train.engine import Engine
from tests.train.conftest import CPU, Work, saved, whole

LOSSES = {"critic": "critic", "generator": "generator"}
AXES = {"real": ("batch", "feature"), "z": ("batch", "latent")}
STAGES = """mesh gpus(pp = 2)
assign model["generator"] to gpus[pp = 0]
assign model - model["generator"] to gpus[pp = 1]
split model by batch into m = 2
"""
WHOLE = """mesh gpus(dp = 2)
split model by batch into dp
split model.weights by row into dp
split model.optimizer by matrix into dp
assign model to gpus
"""
PLANS = {
    "data": ("data_parallel", {"D": 2}, 2),
    "tensor": ("tensor_parallel", {"T": 2}, 2),
    "zero1": ("zero", {"D": 2, "Z": 1}, 2),
    "zero3": ("zero", {"D": 2, "Z": 3}, 2),
    "stages": (STAGES, {}, 2),
    "whole": (WHOLE, {}, 2),
}
# the gradient of the last bias of the critic cancels: with a small eps its rounding would be a step
CRITIC, GENERATOR = {"lr": 2e-2, "betas": (0.5, 0.9), "eps": 1e-2}, {"lr": 1e-2, "weight_decay": 0.1}


class Gan(nn.Module):
    """A generator and a critic, with a hinge loss each; the critic's steps do not reach the generator."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 10))
        self.critic = nn.Sequential(nn.Linear(10, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))

    def forward(self, real: torch.Tensor, z: torch.Tensor) -> dict[str, torch.Tensor]:
        fake = self.generator(z)
        critic = (1 - self.critic(real)).relu().mean() + (1 + self.critic(fake.detach())).relu().mean()
        return {"critic": critic, "generator": -self.critic(fake).mean(), "fake": fake}


def gan() -> Gan:
    torch.manual_seed(0)
    return Gan()


def batches(count: int, samples: int = 8) -> list[dict[str, torch.Tensor]]:
    draw = torch.Generator().manual_seed(1)
    sizes = {"real": 10, "z": 6}
    return [{n: torch.randn(samples, size, generator=draw) for n, size in sizes.items()} for _ in range(count)]


def live(plan: str, work: Work, tmp_path: Path) -> list[Any]:
    """What `work` gives on each rank with an engine for the model's losses."""
    text, params, count = PLANS[plan]
    path = plan_path(text) if "\n" not in text else tmp_path / "plan.ssp"
    if "\n" in text:
        path.write_text(text)

    def body(world: World, place: Any) -> Any:
        model = model_of(gan(), batches(1)[0], AXES, loss=LOSSES)
        engine = Engine(Live(path, model, params, world.control), world, CPU, background=False)
        found = work(engine)
        engine.close()
        return found

    return run_ranks(count, body)


def optimizers(engine: Engine) -> tuple[torch.optim.Optimizer, torch.optim.Optimizer]:
    critic = engine.optimizer(torch.optim.Adam, weights="critic.*", **CRITIC)
    return critic, engine.optimizer(torch.optim.AdamW, weights="generator.*", **GENERATOR)


def alone(clip: float | None = None) -> tuple[list[float], dict[str, torch.Tensor]]:
    """The loop on one device: a critic's step, accumulated over two batches, then a generator's."""
    module, losses = gan(), []
    critic = torch.optim.Adam(module.critic.parameters(), **CRITIC)  # type: ignore[arg-type]
    generator = torch.optim.AdamW(module.generator.parameters(), **GENERATOR)  # type: ignore[arg-type]
    for first, second, third in zip(*[iter(batches(6))] * 3, strict=True):
        critic.zero_grad()
        for batch in (first, second):
            loss = module(**batch)["critic"]
            (loss / 2).backward()
            losses.append(float(loss.detach()))
        if clip is not None:
            nn.utils.clip_grad_norm_(module.critic.parameters(), clip)
        critic.step()
        generator.zero_grad()
        loss = module(**third)["generator"]
        loss.backward()
        generator.step()
        losses.append(float(loss.detach()))
    return losses, {name: p.detach() for name, p in module.named_parameters()}


def loop(engine: Engine, clip: float | None = None, middle: Any = None) -> list[float]:
    critic, generator = optimizers(engine)
    losses = []
    for number, (first, second, third) in enumerate(zip(*[iter(batches(6))] * 3, strict=True)):
        losses.append(engine.step(first, loss="critic", optimizer=critic, update=False, scale=0.5))
        losses.append(engine.step(second, loss="critic", optimizer=critic, scale=0.5, clip=clip))
        losses.append(engine.step(third, loss="generator", optimizer=generator))
        if middle is not None and number == 0:
            middle(engine)
    return losses


@pytest.mark.covering
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("clip", [None, 0.05])
def test_alternating_steps_are_those_of_one_device(plan: str, clip: float | None, tmp_path: Path) -> None:
    ranks = live(plan, lambda engine: (loop(engine, clip), saved(engine)), tmp_path)
    losses, weights = alone(clip)
    for said, _ in ranks:
        torch.testing.assert_close(said, losses, rtol=1e-5, atol=1e-6)
    found = whole([held for _, held in ranks])
    assert found.keys() == weights.keys()
    for name, weight in weights.items():
        torch.testing.assert_close(found[name], weight, rtol=1e-4, atol=1e-6)


def test_a_step_without_a_name_trains_the_sum(tmp_path: Path) -> None:
    given = batches(3)

    def work(engine: Engine) -> list[float]:
        engine.optimizer(torch.optim.SGD, lr=0.1)
        return [engine.step(batch) for batch in given]

    module, expected = gan(), []
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for batch in given:
        found = module(**batch)
        optimizer.zero_grad()
        loss = found["critic"] + found["generator"]
        loss.backward()
        optimizer.step()
        expected.append(float(loss.detach()))
    torch.testing.assert_close(live("data", work, tmp_path)[0], expected, rtol=1e-5, atol=1e-6)


def test_both_optimizers_continue_from_one_checkpoint_under_another_plan(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    live("zero1", lambda engine: loop(engine, middle=lambda e: e.save(folder, wait=True)), tmp_path)

    def work(engine: Engine) -> list[float]:
        critic, generator = optimizers(engine)
        engine.resume(folder)
        first, second, third = batches(6)[3:]
        engine.step(first, loss="critic", optimizer=critic, update=False, scale=0.5)
        engine.step(second, loss="critic", optimizer=critic, scale=0.5)
        return [engine.step(third, loss="generator", optimizer=generator), engine.steps]

    for said in live("stages", work, tmp_path):
        torch.testing.assert_close(said, [alone()[0][-1], 4], rtol=1e-5, atol=1e-6)


def test_an_odd_batch_has_a_program_for_each_loss(tmp_path: Path) -> None:
    (odd,) = batches(1, samples=5)

    def work(engine: Engine) -> list[float]:
        critic, _ = optimizers(engine)
        return [engine.step(odd, loss=name, optimizer=critic, allow_nan=False) for name in ("generator", "critic")]

    found = gan()(**odd)
    assert live("data", work, tmp_path)[0][0] == pytest.approx(float(found["generator"]), rel=1e-5)


@pytest.mark.parametrize(
    ("work", "reason", "change"),
    [
        (lambda e: e.step(batches(1)[0], loss="critics"), "there is no loss `critics`", "did you mean `critic`?"),
        (
            lambda e: (optimizers(e), e.step(batches(1)[0], loss="critic")),
            "2 optimizers",
            "engine.step(batch, optimizer=",
        ),
        (lambda e: (optimizers(e), e.optimizer(torch.optim.SGD, lr=1.0)), "of two optimizers", 'weights="critic.*"'),
        (
            lambda e: e.optimizer(torch.optim.SGD, lr=1.0, weights="d.*"),
            "no trained weight has such a name",
            "generator",
        ),
        (
            lambda e: (optimizers(e), e.step(batches(1)[0], optimizer=3)),
            "optimizer=3",
            "that `engine.optimizer` returned",
        ),
    ],
)
def test_mistakes_say_what_to_change(work: Work, reason: str, change: str, tmp_path: Path) -> None:
    with pytest.raises((EngineError, RanksFailed)) as raised:
        live("data", work, tmp_path)
    assert reason in str(raised.value)
    assert change in str(raised.value)


def test_gradients_of_one_loss_wait_for_a_step_of_the_other(tmp_path: Path) -> None:
    """The step that updates does not reach all of the weights whose gradients wait."""

    def work(engine: Engine) -> list[float]:
        made = engine.optimizer(torch.optim.SGD, lr=0.1)
        first, second, third = batches(3)
        engine.step(first, loss="generator", optimizer=made, update=False)
        engine.step(second, loss="critic", optimizer=made)
        return [engine.step(third, loss=name, optimizer=made, update=False) for name in ("generator", "critic")]

    expected = live("data", work, tmp_path)[0]
    for plan in ("zero3", "whole"):
        assert live(plan, work, tmp_path)[0] == pytest.approx(expected, rel=1e-4)
