"""Sequences of any length: a program for each, on the same weights, whose losses are those of one device."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ssdsl.lang.shipped import plan_path
from ssdsl.model.load.from_module import model_of
from ssdsl.run.in_process.run_in_process import RanksFailed, run_ranks
from ssdsl.run.rank0_compiler import Live
from ssdsl.runtime.errors import EngineError
from ssdsl.runtime.ranks.world import World
from ssdsl.runtime.train.engine import Engine
from tests.train.conftest import AXES, CPU, Work

POSITIONS, SAMPLES, SEQ = 20, 6, 8
LENGTHS = ((SAMPLES, SEQ), (SAMPLES, 11), (5, 7), (SAMPLES, 3), (2, SEQ), (SAMPLES, 1), (SAMPLES, 11))
GRID = """mesh gpus(dp = 2, tp = 2)
split model by batch into dp
split model by heads into tp
split model by ffn into tp
assign model to gpus
"""
RING = """use sequence_parallel: zigzag
mesh gpus(dp = 2, cp = 2)
let attention = model.scaled_dot_product_attention
split model by batch into dp
split model by seq into cp parts zigzag(2)
split attention by seq.keys into cp parts zigzag(2)
assign model to gpus
"""
PLANS = {
    "data x tensor": (GRID, {}, 4),
    "ring": (RING, {}, 4),
    "zero": ("zero", {"D": 2, "Z": 3}, 2),
    "pipeline": ("pipeline", {"M": 3}, 2),
}


class Text(nn.Module):
    """A layer of causal attention and one of a feed-forward network, with learned positions. Label -100 is padding."""

    def __init__(self) -> None:
        super().__init__()
        self.emb, self.positions = nn.Embedding(32, 16), nn.Embedding(POSITIONS, 16)
        self.qkv, self.out, self.norm = nn.Linear(16, 48), nn.Linear(16, 16), nn.LayerNorm(16)
        self.up, self.down, self.head = nn.Linear(16, 32), nn.Linear(32, 16), nn.Linear(16, 32)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        batch, seq = x.shape
        h = self.emb(x) + self.positions(torch.arange(seq))
        q, k, v = (t.view(batch, seq, 2, 8).transpose(1, 2) for t in self.qkv(self.norm(h)).chunk(3, -1))
        h = h + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        logits = self.head(h + self.down(F.gelu(self.up(h))))
        return {"loss": F.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=-100), "logits": logits}


def text() -> Text:
    torch.manual_seed(0)
    return Text()


def made(samples: int, seq: int) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(100 * samples + seq)
    batch = {name: torch.randint(0, 32, (samples, seq), generator=draw) for name in ("x", "y")}
    batch["y"][0, -1] = -100 if seq > 1 else 3
    return batch


def engines(plan: str, work: Work, tmp_path: Path, example: tuple[int, int] = (SAMPLES, SEQ)) -> list[Any]:
    """What `work` gives on each rank."""
    source, params, count = PLANS[plan]
    if "\n" in source:
        (tmp_path / "plan.ssp").write_text(source)
        source = str(tmp_path / "plan.ssp")

    def body(world: World, place: Any) -> Any:
        live = Live(plan_path(source), model_of(text(), made(*example), AXES), params, world.control)
        return work(Engine(live, world, CPU, background=False))

    return run_ranks(count, body)


def alone(sizes: Any = LENGTHS) -> tuple[list[float], Text]:
    """The losses of one device, and the module after these steps."""
    module, losses = text(), []
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    for one in sizes:
        optimizer.zero_grad()
        loss = module(**made(*one))["loss"]
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, module


@pytest.mark.thinned(11)
@pytest.mark.parametrize("plan", PLANS)
def test_lengths_that_change_each_step_train_as_on_one_device(
    plan: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a checkpoint in between, and predictions of lengths that training has not seen."""

    def begin(engine: Engine) -> list[float]:
        engine.optimizer(torch.optim.AdamW, lr=1e-2)
        losses = [engine.step(made(*one)) for one in LENGTHS[:4]]
        engine.save(tmp_path / "run", wait=True)
        return losses

    def resume(engine: Engine) -> Any:
        engine.optimizer(torch.optim.AdamW, lr=1e-2)
        assert engine.resume(tmp_path / "run") == {} and engine.steps == 4
        losses = [engine.step(made(*one)) for one in LENGTHS[4:]]
        tail = made(3, 13)
        return losses, engine.predict(tail, "logits")["logits"], engine.evaluate(tail)

    first, (second, logits, tail) = engines(plan, begin, tmp_path)[0], engines(plan, resume, tmp_path)[-1]
    expected, module = alone()
    torch.testing.assert_close([*first, *second], expected, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        found = module.eval()(**made(3, 13))
    torch.testing.assert_close(logits, found["logits"], rtol=1e-3, atol=1e-4)
    assert tail == pytest.approx(float(found["loss"]), rel=1e-4)
    said = capsys.readouterr().err
    assert said.count("for seq = 11 ...") == 2 and "for a batch of 5 with seq = 7 ..." in said  # once for each engine


def test_inputs_of_other_lengths_than_each_other(tmp_path: Path) -> None:
    def work(engine: Engine) -> str:
        engine.optimizer(torch.optim.SGD, lr=0.1)
        with pytest.raises(EngineError) as error:
            engine.step({"x": made(6, 8)["x"], "y": made(6, 7)["y"]})
        return str(error.value)

    told = engines("zero", work, tmp_path)
    assert told[0] == told[1] and "input `y` has 7 along `seq`, and other inputs have 8" in told[0]


def test_ranks_with_batches_of_other_lengths(tmp_path: Path) -> None:
    def work(engine: Engine) -> str:
        engine.optimizer(torch.optim.SGD, lr=0.1)
        with pytest.raises(EngineError) as error:
            engine.step(made(6, 8 + engine.rank))
        return str(error.value)

    told = engines("zero", work, tmp_path)
    assert told[0] == told[1] and told[0].startswith("rank 1 was given seq = 9, and rank 0 seq = 8")


@pytest.mark.parametrize("plan", ("ring", "pipeline"))
def test_a_loader_of_batches_of_any_length(plan: str, tmp_path: Path) -> None:
    """Whose items are batches, or whose collate function pads to the longest of some samples."""
    order = [(SAMPLES, n) for n in (SEQ, 5, 12, SEQ)]

    def work(engine: Engine) -> Any:
        engine.optimizer(torch.optim.AdamW, lr=1e-2)
        found = []
        for batch in engine.loader([made(*one) for one in order], batch_size=None):
            found.append((engine.step(batch), batch.shapes["x"], tuple(batch["y"].shape)))
            assert engine.ran.inputs["x"].shape == batch.shapes["x"]
        samples = [{name: t[row] for name, t in made(*one).items()} for one in order for row in range(SAMPLES)]
        return found, [batch.shapes["x"] for batch in engine.loader(samples, SAMPLES)]

    for found, sampled in engines(plan, work, tmp_path):
        torch.testing.assert_close([loss for loss, _, _ in found], alone(order)[0], rtol=1e-4, atol=1e-5)
        assert [shape for _, shape, _ in found] == [shape for _, _, shape in found] == order == sampled


class Sentences(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Samples of many lengths; a few are long."""

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(3)
        lengths = [*torch.randint(1, 9, (23,), generator=draw).tolist(), 12, 11, 9]
        self.all = [{name: torch.randint(0, 32, (n,), generator=draw) for name in ("x", "y")} for n in lengths]

    def __len__(self) -> int:
        return len(self.all)

    def __getitem__(self, at: int) -> dict[str, torch.Tensor]:
        return self.all[at]


BUCKETS: dict[str, Any] = {"buckets": [12, 4, SEQ], "pad": {"x": 0, "y": -100}, "drop_last": False, "shuffle": True}


@pytest.mark.thinned(11)
@pytest.mark.parametrize("plan", [*PLANS][::-1])
def test_buckets_of_lengths_train_as_on_one_device(plan: str, tmp_path: Path) -> None:
    """And a run that is resumed in the middle of an epoch, with workers, goes on with the same batches."""

    def begin(engine: Engine) -> Any:
        engine.optimizer(torch.optim.AdamW, lr=1e-2)
        loader, found = engine.loader(Sentences(), SAMPLES, **BUCKETS), []
        for batch in loader:
            found.append((engine.step(batch), dict(batch)))
            if engine.steps == 3:
                engine.save(tmp_path / "run", wait=True)
        assert len(found) == len(loader)
        return found

    def resume(engine: Engine) -> Any:
        engine.optimizer(torch.optim.AdamW, lr=1e-2)
        loader = engine.loader(Sentences(), SAMPLES, num_workers=2, **BUCKETS)
        engine.resume(tmp_path / "run")
        return [engine.step(batch) for batch in loader]

    ranks = engines(plan, begin, tmp_path)
    module, optimizer_of = text(), torch.optim.AdamW
    optimizer, expected = optimizer_of(module.parameters(), lr=1e-2), []
    for _, batch in ranks[0]:
        optimizer.zero_grad()
        loss = module(**batch)["loss"]
        loss.backward()
        optimizer.step()
        expected.append(float(loss.detach()))
    for rank in ranks:
        torch.testing.assert_close([loss for loss, _ in rank], expected, rtol=1e-4, atol=1e-5)
        for (_, mine), (_, first) in zip(rank, ranks[0], strict=True):
            assert all(torch.equal(mine[name], first[name]) for name in ("x", "y"))
    _check_buckets([batch for _, batch in ranks[0]])
    torch.testing.assert_close(engines(plan, resume, tmp_path)[-1], expected[3:], rtol=1e-4, atol=1e-5)


def _check_buckets(given: list[dict[str, torch.Tensor]]) -> None:
    """Each sample is in one batch, whole, padded to the least bucket that is as long."""
    left = [tuple(sample["x"].tolist()) for sample in Sentences().all]
    for batch in given:
        for x, y in zip(batch["x"], batch["y"], strict=True):
            length = int((y != -100).sum())
            left.remove(tuple(x[:length].tolist()))
            assert len(x) == next(n for n in (4, SEQ, 12) if n >= length)
            assert not x[length:].any() and (y[length:] == -100).all()
    assert not left
    assert {batch["x"].shape for batch in given} >= {(SAMPLES, 4), (SAMPLES, SEQ), (3, 12)}


def test_positions_that_the_model_does_not_have(tmp_path: Path) -> None:
    def work(engine: Engine) -> None:
        engine.predict(made(SAMPLES, POSITIONS + 1))

    with pytest.raises(RanksFailed, match=r"there is no program for seq = 21: rank 0: error\[E0426\]: `embedding`"):
        engines("zero", work, tmp_path)
