"""Engines that compile what they need: a last batch of another size, evaluation, outputs, and what a script is told."""

from pathlib import Path
from typing import Any

import pytest
import torch

from ssdsl.lang.shipped import plan_path
from ssdsl.model.load.from_module import model_of
from ssdsl.record import replace
from ssdsl.run.in_process.run_in_process import RanksFailed, run_ranks
from ssdsl.run.rank0_compiler import Live
from ssdsl.runtime.errors import EngineError
from ssdsl.runtime.ranks.world import World
from ssdsl.runtime.train.engine import Engine
from tests.train.conftest import AXES, CPU, Net, Work, batches, net

SIZE, SAMPLES = 12, 30  # a last batch of 6


class Scored(Net):
    """Also returns its scores; dropout and running statistics make a difference in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = torch.nn.Dropout(0.2)
        self.batch_norm = torch.nn.BatchNorm1d(12)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        h = self.drop(self.norm(self.emb(x)))
        h = self.batch_norm(h.transpose(1, 2)).transpose(1, 2)
        scores = self.head(h + self.down(torch.relu(self.up(h))))
        return {"loss": torch.nn.functional.cross_entropy(scores.flatten(0, 1), y.flatten()), "scores": scores}


class Lines(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """As many samples as there are."""

    def __init__(self, count: int = SAMPLES) -> None:
        self.all = batches(1, count)[0]

    def __len__(self) -> int:
        return len(self.all["x"])

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        return {name: tensor[number] for name, tensor in self.all.items()}


def live(
    kind: type[Net], plan: str, params: dict[str, int], count: int, work: Work, precision: str | None = None
) -> list[Any]:
    """What `work` gives on each rank with an engine that compiles on rank 0."""

    def body(world: World, place: Any) -> Any:
        torch.manual_seed(0)
        model = replace(model_of(kind(), batches(1, SIZE)[0], AXES), precision=precision)
        programs = Live(plan_path(plan), model, params, world.control)
        engine = Engine(programs, world, CPU, background=False)
        return work(engine)

    return run_ranks(count, body)


@pytest.mark.thinned(6)
@pytest.mark.parametrize(("plan", "params", "count"), [("data_parallel", {"D": 2}, 2), ("zero", {"D": 3}, 3)])
def test_a_last_batch_of_another_size_trains_too(plan: str, params: dict[str, int], count: int) -> None:
    def work(engine: Engine) -> list[float]:
        engine.optimizer(torch.optim.AdamW, lr=1e-2)
        loader = engine.loader(Lines(), SIZE, shuffle=True, seed=7, drop_last=False)
        return [engine.step(batch, clip=1.0) for batch in loader.epochs(2)]

    ranks = live(Net, plan, params, count, work)
    module, expected = net(), []
    optimizer = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], lr=1e-2)
    for given in _order(plan, params, count):
        optimizer.zero_grad()
        loss = module(**given)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        expected.append(float(loss.detach()))
    assert len(expected) == 6 and all(rank == ranks[0] for rank in ranks)
    torch.testing.assert_close(ranks[0], expected, rtol=1e-5, atol=1e-6)


def _order(plan: str, params: dict[str, int], count: int) -> list[dict[str, torch.Tensor]]:
    """The global batches, as one rank that needs all of each sees them."""

    def work(engine: Engine) -> list[dict[str, torch.Tensor]]:
        return [dict(b) for b in engine.loader(Lines(), SIZE, shuffle=True, seed=7, drop_last=False).epochs(2)]

    return list(live(Net, "data_parallel", {"D": 1}, 1, work)[0])


@pytest.mark.thinned(6)
@pytest.mark.parametrize(("plan", "params", "count"), [("tensor_parallel", {"T": 2}, 2), ("pipeline", {"M": 1}, 2)])
def test_evaluation_is_the_module_in_eval_mode_and_changes_nothing(
    plan: str, params: dict[str, int], count: int
) -> None:
    given = batches(3, SIZE)

    def work(engine: Engine, between: bool) -> Any:
        before = engine.evaluate(given[0]) if between else None
        engine.optimizer(torch.optim.SGD, lr=0.1)
        losses = []
        for number, batch in enumerate(given):
            losses.append(engine.step(batch, update=number > 0, scale=0.5))
            if between:
                engine.evaluate(given)
        after = engine.predict(given[1], "scores")["scores"]
        tail = engine.evaluate(engine.loader(Lines(), SIZE, drop_last=False, evaluate=True))
        return before, losses, after, tail, {h.name: h.tensor.clone() for h in engine.held() if not h.piece.takes}

    with_it = live(Scored, plan, params, count, lambda engine: work(engine, True))
    without = live(Scored, plan, params, count, lambda engine: work(engine, False))
    assert with_it[0][1] == without[0][1]
    torch.manual_seed(0)
    module = Scored().eval()
    assert with_it[0][0] == pytest.approx(float(module(**given[0])["loss"].detach()), rel=1e-5)
    for rank in range(count):
        assert with_it[rank][3] == with_it[0][3]
        torch.testing.assert_close(with_it[rank][2], without[rank][2], rtol=0, atol=0)
    if plan == "pipeline":  # whole tensors are there, each on some rank
        held = {name: t for rank in with_it for name, t in rank[4].items()}
        module.load_state_dict({**module.state_dict(), **held}, strict=True)
        torch.testing.assert_close(with_it[0][2], module(**given[1])["scores"].detach(), rtol=1e-4, atol=1e-5)
        lines = Lines().all
        parts = [{n: t[i : i + SIZE] for n, t in lines.items()} for i in range(0, SAMPLES, SIZE)]
        sums = [float(module(**p)["loss"].detach()) * len(p["x"]) for p in parts]
        assert with_it[0][3] == pytest.approx(sum(sums) / SAMPLES, rel=1e-4)


class Shifted(Net):
    """A buffer, behind a part of its memory that has a name of its own."""

    def __init__(self) -> None:
        super().__init__()
        shifts = torch.randn(3, 12)
        self.register_buffer("first", shifts[0])
        self.register_buffer("shifts", shifts)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return super().forward(x, y) + (self.emb(x) * self.shifts.sum(0) * self.first).sum()


def test_all_of_a_tensor_is_rank_0s_where_a_part_of_it_has_a_name_of_its_own() -> None:
    def body(world: World, place: Any) -> Any:
        torch.manual_seed(world.control.rank)
        model = model_of(Shifted(), batches(1, SIZE)[0], AXES)
        Live(plan_path("data_parallel"), model, {"D": 2}, world.control)
        return model.module.state_dict()["shifts"]

    first, second = run_ranks(2, body)
    assert first.equal(second)


def test_a_plan_with_a_mistake_is_shown_on_all_ranks(tmp_path: Path) -> None:
    (tmp_path / "bad.ssp").write_text("mesh gpus(dp = 2)\nsplit model by bach into dp\nassign model to gpus\n")
    with pytest.raises(RanksFailed, match=r"(?s)error\[E02\d\d\].*did you mean `batch`"):
        live(Net, str(tmp_path / "bad.ssp"), {}, 2, lambda engine: None)


def test_a_mistake_of_ours_is_told_on_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("a pass stumbled")

    monkeypatch.setattr("ssdsl.run.rank0_compiler.compile_source", fails)

    def body(world: World, place: Any) -> str:
        model = model_of(net(), batches(1, SIZE)[0], AXES)
        with pytest.raises(EngineError) as error:
            Live(plan_path("data_parallel"), model, {}, world.control)
        return str(error.value)

    ranks = run_ranks(2, body)
    assert ranks[0] == ranks[1] and "compiling failed: RuntimeError('a pass stumbled')" in ranks[0]
    assert "a bug of ssdsl" in ranks[0]


def test_an_output_that_is_not_there_is_told() -> None:
    with pytest.raises(RanksFailed, match=r"(?s)error\[E0420\].*logits"):
        live(Scored, "data_parallel", {"D": 2}, 2, lambda engine: engine.predict(batches(1, SIZE)[0], "logits"))


class Double(Net):
    """In double precision."""

    def __init__(self) -> None:
        super().__init__()
        self.double()


def test_the_norm_of_gradients_in_double_precision_is_as_precise() -> None:
    (given,) = batches(1, SIZE)

    def work(engine: Engine) -> float | None:
        engine.optimizer(torch.optim.SGD, lr=0.1)
        engine.step(given, clip=0.05)
        return engine.grad_norm

    found = live(Double, "zero", {"D": 2}, 2, work)
    torch.manual_seed(0)
    module = Double()
    module(**given).backward()
    expected = float(torch.nn.utils.clip_grad_norm_(module.parameters(), 0.05))
    assert found == pytest.approx([expected] * 2, rel=1e-12)


class Turned(Net):
    """Computes with buffers that nothing changes, as RoPE and masks do: one is a part of its state, one is none."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("angles", torch.linspace(0, 1, 12))
        self.register_buffer("mask", torch.tensor([1.0, 1.0, 1.0, 0.5, 0.5]), persistent=False)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = self.norm(self.emb(x)) * self.angles.cos() * self.mask[:, None]
        return torch.nn.functional.cross_entropy(self.head(h).flatten(0, 1), y.flatten())


@pytest.mark.parametrize("how", ["by a function", "on meta"])
def test_ranks_make_the_constants_of_a_model_that_no_process_holds(how: str) -> None:
    (given,) = batches(1, SIZE)

    def body(world: World, place: Any) -> Any:
        made: Any = Turned
        if how == "on meta":
            made = Turned()
            made.emb.to("meta")
            made.head.weight = made.emb.weight
        model = model_of(made, given, AXES)
        engine = Engine(Live(plan_path("zero"), model, {"D": 2}, world.control), world, CPU, background=False)
        engine.optimizer(torch.optim.SGD, lr=0.1)
        return [engine.step(given), engine.step(given), engine.evaluate(given)], model.with_numbers().module

    (losses, module), (others, _) = run_ranks(2, body)
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.1)
    expected = []
    for _ in range(3):
        expected.append(module(**given))
        optimizer.zero_grad()
        expected[-1].backward()
        optimizer.step()
    assert losses == others
    torch.testing.assert_close(losses, [float(loss.detach()) for loss in expected], rtol=1e-5, atol=1e-6)


def test_constants_are_of_the_type_that_was_captured() -> None:
    """Of half precision as the weights are, whether the model's state has them or not."""

    def work(engine: Engine) -> Any:
        return {name: engine.training.constants[name].dtype for name in ("angles", "mask")}

    ranks = live(Turned, "data_parallel", {"D": 2}, 2, work, precision="bf16")
    assert ranks == [{"angles": torch.bfloat16, "mask": torch.bfloat16}] * 2


class Distance(torch.nn.Module):
    """Takes floating-point numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.up(x) - x).square().mean()


def test_a_loaders_numbers_are_cast_to_half_precision_as_those_of_a_step() -> None:
    """Also those of a smaller last batch, and in parts."""
    given = torch.randn(SIZE + 2, 4, generator=torch.Generator().manual_seed(0))
    rows = [{"x": given[:SIZE]}, {"x": given[SIZE:]}]

    def body(world: World, place: Any) -> Any:
        torch.manual_seed(0)
        model = replace(model_of(Distance(), rows[0], {"x": ("batch", "width")}), precision="bf16")
        engine = Engine(Live(plan_path("data_parallel"), model, {"D": 2}, world.control), world, CPU, background=False)
        engine.optimizer(torch.optim.SGD, lr=0.0)
        data = [{"x": row} for row in given]
        loaded = engine.loader(data, SIZE, drop_last=False)
        judged = engine.loader(data, SIZE, drop_last=False, evaluate=True)
        return [engine.step(b) for b in loaded], [engine.step(b) for b in rows], engine.evaluate(judged)

    for loaded, stepped, judged in run_ranks(2, body):
        assert len(loaded) == 2 and loaded == stepped and judged == pytest.approx(loaded[0], rel=0.2)


class Pair(Net):
    """Returns its loss and its scores as a tuple."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        scores = self.head(torch.relu(self.up(self.norm(self.emb(x)))) @ self.down.weight.T)
        return torch.nn.functional.cross_entropy(scores.flatten(0, 1), y.flatten()), scores


@pytest.mark.thinned(6)
@pytest.mark.parametrize(("plan", "params"), [("pipeline", {"M": 2}), ("data_parallel", {"D": 2})])
def test_batches_of_any_size_are_those_of_one_device(plan: str, params: dict[str, int]) -> None:
    """In parts of unequal sizes, or with fewer samples than parts; gradients of several sizes add up."""
    given = [{name: t[:n] for name, t in batches(1, SIZE)[0].items()} for n in (SIZE, 5, 1)]

    def work(engine: Engine) -> Any:
        engine.optimizer(torch.optim.SGD, lr=0.1)
        losses = [engine.step(batch, update=n > 1, scale=0.5) for n, batch in enumerate((*given, given[1]))]
        return losses, engine.evaluate(given[1:]), engine.predict(given[1]), engine.predict(given[2], 1, "0")

    ranks = live(Pair, plan, params, 2, work)
    torch.manual_seed(0)
    module, losses = Pair(), []
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.1)
    for n, batch in enumerate((*given, given[1])):
        loss, _ = module(**batch)
        (loss * 0.5).backward()
        losses.append(float(loss.detach()))
        if n > 1:
            optimizer.step()
            optimizer.zero_grad()
    with torch.no_grad():
        (five, scores), (one, single) = module(**given[1]), module(**given[2])
    expected = losses, float(five * 5 + one) / 6, {0: five, 1: scores}, {1: single, "0": one}
    for rank in ranks:
        torch.testing.assert_close(rank, expected, rtol=1e-4, atol=1e-5)


def test_a_last_batch_that_devices_do_not_divide_is_a_batch_as_any(capsys: pytest.CaptureFixture[str]) -> None:
    def work(engine: Engine) -> Any:
        loader = engine.loader(Lines(17), SIZE, drop_last=False, evaluate=True)
        with pytest.raises(EngineError) as error:
            engine.predict(batches(1, SIZE)[0])
        return engine.evaluate(loader), str(error.value)

    (found, told), _ = live(Net, "data_parallel", {"D": 2}, 2, work)
    lines, module = Lines(17).all, net()
    parts = [{n: t[i : i + SIZE] for n, t in lines.items()} for i in range(0, 17, SIZE)]
    assert found == pytest.approx(sum(float(module(**p).detach()) * len(p["x"]) for p in parts) / 17, rel=1e-5)
    assert "returns its loss alone" in told
    said = capsys.readouterr().err
    assert "compiling data_parallel.ssp ...\ncompiled data_parallel.ssp in " in said
    assert said.count("compiling data_parallel.ssp for evaluation for a batch of 5 ...") == 1
