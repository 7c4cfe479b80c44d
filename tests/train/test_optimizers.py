"""Training under a plan is that of one device: optimizers, groups, clipping, schedules, accumulation, precision."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ssdsl.compile import compile_plan
from ssdsl.lang.shipped import plan_path
from ssdsl.model.load.from_module import model_of
from ssdsl.model.module_to_graph import capture
from ssdsl.record import replace
from ssdsl.run.in_process.run_in_process import program_of, run_ranks
from ssdsl.runtime.errors import EngineError
from ssdsl.runtime.main import make_optimizer
from ssdsl.runtime.program.initial_state import InitialState
from ssdsl.runtime.ranks.world import World
from ssdsl.runtime.step.flat_params import Replicated
from ssdsl.runtime.step.parts import LocalTensor
from ssdsl.runtime.train.check_optimizer import refuses_sparse
from ssdsl.runtime.train.engine import Engine
from ssdsl.runtime.train.optimizer import Optimizer, stepped
from ssdsl.runtime.train.precision import HALF
from ssdsl.runtime.train.programs import InMemory
from ssdsl.runtime.train.training_state import _set
from tests.train.conftest import PLANS, batches, net, on_ranks, saved, whole

STEPS = 4
GROUPS = {"*.bias|*norm*": {"weight_decay": 0.0, "lr": 3e-3}}
OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "adamw": (torch.optim.AdamW, {"lr": 1e-2, "weight_decay": 0.1}),
    "fused": (torch.optim.AdamW, {"lr": 1e-2, "fused": True}),
    "momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "rmsprop": (torch.optim.RMSprop, {"lr": 1e-3}),
    "adagrad": (torch.optim.Adagrad, {"lr": 1e-2}),
    "radam": (torch.optim.RAdam, {"lr": 1e-2}),
}
ON_ONE = {"adafactor": (torch.optim.Adafactor, {"lr": 1e-2})}


def alone(make: Any, options: dict[str, Any], clip: float | None, every: int = 1) -> tuple[list[float], Any]:
    """The single device: losses and final weights of the same loop in plain PyTorch."""
    module = net()
    named = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
    plain = [p for n, p in named if n.endswith(".bias") or "norm" in n]
    rest = [p for n, p in named if not (n.endswith(".bias") or "norm" in n)]
    optimizer = make([{"params": plain, **GROUPS["*.bias|*norm*"]}, {"params": rest}], **options)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
    losses = []
    for step, batch in enumerate(batches(STEPS)):
        loss = module(**batch)
        (loss / every).backward()
        losses.append(float(loss.detach()))
        if (step + 1) % every == 0:
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(module.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    return losses, {n: p.detach() for n, p in module.named_parameters()}


def training(make: Any, options: dict[str, Any], clip: float | None, every: int = 1) -> Callable[[Engine], Any]:
    """The same loop with an engine."""

    def work(engine: Engine) -> Any:
        engine.optimizer(make, groups=GROUPS, **options)
        schedule = torch.optim.lr_scheduler.ExponentialLR(engine.optim, 0.7)
        losses = []
        for step, batch in enumerate(batches(STEPS)):
            last = (step + 1) % every == 0
            losses.append(engine.step(batch, clip=clip, update=last, scale=1 / every))
            if last:
                schedule.step()
        return losses, saved(engine)

    return work


def check(ranks: list[Any], expected: tuple[list[float], Any]) -> None:
    losses, weights = expected
    assert all(rank[0] == ranks[0][0] for rank in ranks)
    torch.testing.assert_close(ranks[0][0], losses, rtol=1e-5, atol=1e-6)
    for name, tensor in whole([rank[1] for rank in ranks]).items():
        torch.testing.assert_close(tensor, weights[name], rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.covering
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_any_optimizer_steps_as_on_one_device(plan: str, name: str) -> None:
    make, options = OPTIMIZERS[name]
    clip = 0.5 if name != "radam" else None
    check(on_ranks(plan, training(make, options, clip)), alone(make, options, clip))


@pytest.mark.parametrize("plan", ["data", "tensor", "zero3", "stages"])
def test_gradients_of_several_steps_add_up(plan: str) -> None:
    make, options = OPTIMIZERS["adamw"]
    check(on_ranks(plan, training(make, options, 0.3, every=2)), alone(make, options, 0.3, every=2))


def test_one_that_looks_at_whole_weights_needs_them_whole() -> None:
    make, options = ON_ONE["adafactor"]
    check(on_ranks("data", training(make, options, None)), alone(make, options, None))
    with pytest.raises(Exception, match=r"`Adafactor` looks at a weight as a whole, and this plan has `\S+` in parts"):
        on_ranks("tensor", training(make, options, None))


def test_one_that_refuses_sparse_gradients_is_refused_where_one_device_has_them() -> None:
    for make in (torch.optim.AdamW, torch.optim.RMSprop):
        with pytest.raises(EngineError, match="the gradients of `w` are sparse"):
            Optimizer(make, [], {"w": ["w"]}, None, {"lr": 0.1}, ["w"])
    assert not refuses_sparse(torch.optim.SGD, {"lr": 0.1})


def test_a_norm_counts_each_element_once() -> None:
    def norm(engine: Engine) -> Any:
        engine.optimizer(torch.optim.SGD, lr=0.1)
        engine.step(batches(1)[0], clip=1e9)
        return engine.grad_norm

    module = net()
    module(**batches(1)[0]).backward()
    expected = float(torch.nn.utils.clip_grad_norm_(module.parameters(), 1e9))
    for plan in PLANS:
        assert on_ranks(plan, norm) == pytest.approx([expected] * len(on_ranks(plan, norm)), rel=1e-6)


class Spectral(torch.nn.Module):
    """A filter with a complex weight, as in a Fourier neural operator."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.filter = torch.nn.Parameter(torch.randn(4, 4, dtype=torch.complex64))
        self.head = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.einsum("btc,cd->btd", torch.fft.rfft(x, dim=1), self.filter)
        return self.head(torch.fft.irfft(h, dim=1, n=8)).square().mean()


SPECTRAL = torch.randn(4, 8, 4, generator=torch.Generator().manual_seed(1))


def test_complex_weights_step_as_on_one_device() -> None:
    """They count in the norm; AdamW is no fused one, which takes real weights only."""

    model = model_of(Spectral(), {"x": SPECTRAL}, {"x": ("batch", "time", "c")})
    program = program_of(compile_plan(plan_path("data_parallel"), capture(model), {"D": 2}).program, model)

    def work(world: World, _: Any) -> Any:
        own = replace(program, weights=program.weights.copy())
        engine = Engine(InMemory(own), world, torch.device("cpu"), background=False)
        make_optimizer(engine, "adamw", 1e-2)
        for _ in range(2):
            engine.step({"x": SPECTRAL}, clip=0.1)
        return engine.grad_norm, engine.tensors()

    module = Spectral()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    for _ in range(2):
        optimizer.zero_grad()
        module(SPECTRAL).backward()
        norm = float(torch.nn.utils.clip_grad_norm_(module.parameters(), 0.1))
        optimizer.step()
    for found, weights in run_ranks(2, work):
        assert found == pytest.approx(norm, rel=1e-5)
        torch.testing.assert_close(weights, {n: p.detach() for n, p in module.named_parameters()})


def test_complex_weights_of_a_model_in_half_precision_stay_complex() -> None:
    held = LocalTensor.whole("filter", Spectral().filter.detach())
    flat = Replicated(0, {"filter": held.tensor}, None, 1)
    (weight,) = stepped([flat], [held], InitialState({"filter": held.tensor}))
    assert weight.parameter.is_complex() and not weight.is_copy


# -- half precision ----------------------------------------------------------------------------------------------------


def halved(precision: str, scale: float) -> tuple[list[float], Any]:
    """One device with master weights: gradients in half precision, steps in float32."""
    module, masters = net().to(HALF[precision]), dict(net().named_parameters())
    optimizer = torch.optim.AdamW([p for p in masters.values() if p.requires_grad], lr=1e-2)
    losses = []
    for batch in batches(STEPS):
        module.zero_grad()
        loss = module(**batch)
        (loss * scale).backward()
        losses.append(float(loss.detach()))
        for name, weight in module.named_parameters():
            masters[name].grad = weight.grad.float() / scale if weight.grad is not None else None
        optimizer.step()
        with torch.no_grad():
            for name, weight in module.named_parameters():
                weight.copy_(masters[name])
    return losses, {n: p.detach() for n, p in module.named_parameters()}


@pytest.mark.covering
@pytest.mark.parametrize("plan", ["one", "data", "zero3", "stages"])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_steps_on_masters(plan: str, precision: str) -> None:
    def work(engine: Engine) -> Any:
        engine.optimizer(torch.optim.AdamW, lr=1e-2)
        if engine.scaler is not None:
            engine.scaler.scale = 1024.0
        return [engine.step(batch) for batch in batches(STEPS)], saved(engine)

    losses, weights = halved(precision, 1.0 if precision == "bf16" else 1024.0)
    ranks = on_ranks(plan, work, precision)
    torch.testing.assert_close(ranks[0][0], losses, rtol=2e-2, atol=2e-2)
    for name, tensor in whole([rank[1] for rank in ranks]).items():
        torch.testing.assert_close(tensor.float(), weights[name].float(), rtol=5e-2, atol=2e-2)
    if plan == "one":
        assert ranks[0][0] == losses


def test_an_overflow_leaves_a_step_out_on_all_ranks() -> None:
    def work(engine: Engine) -> Any:
        engine.optimizer(torch.optim.AdamW, lr=1e-2)
        assert engine.scaler is not None
        engine.scaler.scale = 2.0**40
        before = saved(engine)
        engine.step(batches(1)[0])
        after = saved(engine)
        same = all(torch.equal(before[n]["tensor"], after[n]["tensor"]) for n in before)
        return engine.steps, engine.scaler.scale, same

    assert on_ranks("stages", work, "fp16") == [(0, 2.0**39, True)] * 2


def test_an_overflow_leaves_out_the_update_that_its_gradients_are_for() -> None:
    """One device skips it too: a step on the other batches alone would be a smaller one in another direction."""

    def work(engine: Engine) -> Any:
        engine.optimizer(torch.optim.SGD, lr=0.1)
        assert engine.scaler is not None
        steps = []
        for scale, last in ((2.0**40, False), (1024.0, False), (1024.0, True), (1024.0, False), (1024.0, True)):
            engine.scaler.scale = scale
            engine.step(batches(1)[0], update=last, scale=1 / 2)
            steps.append(engine.steps)
        return steps

    assert on_ranks("data", work, "fp16") == [[0, 0, 0, 0, 1]] * 2


def test_an_overflow_is_not_forgotten_by_a_run_that_resumes(tmp_path: Path) -> None:
    """Which was saved between the batches of the update that it leaves out."""

    def begin(engine: Engine) -> None:
        engine.optimizer(torch.optim.SGD, lr=0.1)
        engine.scaler.scale = 2.0**40  # type: ignore[union-attr]
        engine.step(batches(1)[0], update=False, scale=1 / 2)
        engine.save(tmp_path)

    def go_on(engine: Engine) -> list[tuple[int, int]]:
        engine.optimizer(torch.optim.SGD, lr=0.1)
        engine.resume(tmp_path)
        engine.scaler.scale = 1024.0  # type: ignore[union-attr]
        steps = []
        for last in (True, False, True):
            engine.step(batches(1)[0], update=last, scale=1 / 2)
            steps.append((engine.steps, engine.updates))
        engine.save(tmp_path)
        return steps

    on_ranks("data", begin, "fp16")
    assert on_ranks("data", go_on, "fp16") == [[(0, 1), (0, 1), (1, 2)]] * 2

    def resumed(engine: Engine) -> tuple[int, int]:
        engine.optimizer(torch.optim.SGD, lr=0.1)
        engine.resume(tmp_path)
        return engine.steps, engine.updates

    assert on_ranks("data", resumed, "fp16") == [(1, 2)] * 2


@pytest.mark.parametrize(
    ("make", "options", "moved"),
    [
        (torch.optim.NAdam, {}, {"mu_product"}),
        (torch.optim.ASGD, {}, {"eta", "mu"}),
        (torch.optim.Adam, {"capturable": True}, {"step"}),
        (torch.optim.Adam, {}, set()),
    ],
)
def test_numbers_of_the_state_come_back_to_the_device_of_their_weight(
    make: Any, options: dict[str, Any], moved: set[str]
) -> None:
    """As by torch's own `load_state_dict`. A meta tensor stands for one on a GPU."""
    weight = torch.nn.Parameter(torch.empty(2, device="meta"))
    state = {key: torch.ones(()) for key in ("step", "mu_product", "eta", "mu")}
    held = SimpleNamespace(name="w", parameter=weight)
    optimizer = SimpleNamespace(torch=make([weight], **options), weights=[held])
    facts = {"param_groups": optimizer.torch.state_dict()["param_groups"]}
    _set(optimizer, {"w": state}, facts)  # type: ignore[arg-type]
    found = optimizer.torch.state[weight]
    assert {key for key in state if found[key].is_meta} & {"step", *moved} == moved


def test_a_pattern_may_match_any_name_of_a_tied_weight() -> None:
    def work(engine: Engine) -> list[list[float]]:
        made = engine.optimizer(torch.optim.SGD, lr=0.1, groups={"head.weight": {"lr": 0.5}})
        return [[group["lr"], len(group["params"])] for group in made.param_groups]

    assert on_ranks("data", work)[0][0] == [0.5, 1]  # its first name is `emb.weight`


# -- mistakes ----------------------------------------------------------------------------------------------------------


def said(engine: Engine, mistake: Callable[[Engine], Any]) -> str:
    try:
        mistake(engine)
    except EngineError as error:
        return str(error)
    return ""


def test_mistakes_are_told_to_all_ranks() -> None:
    good = batches(1)[0]

    def work(engine: Engine) -> list[str]:
        early = said(engine, lambda e: e.step(good))
        unknown = said(engine, lambda e: e.optimizer(torch.optim.SGD, groups={"*.bais": {}}, lr=0.1))
        options = said(engine, lambda e: e.optimizer(torch.optim.SGD, learning_rate=0.1))
        closure = said(engine, lambda e: e.optimizer(torch.optim.LBFGS))
        engine.optimizer(torch.optim.SGD, lr=0.1)
        shape = said(engine, lambda e: e.step({"x": good["x"][:, :4], "y": good["y"]}))
        dtype = said(engine, lambda e: e.step({"x": good["x"].int(), "y": good["y"]}))
        name = said(engine, lambda e: e.step({"x": good["x"], "z": good["y"]}))
        one = said(engine, lambda e: e.step(good if engine.rank else {"x": good["x"]}))
        other = said(engine, lambda e: e.step({n: t + engine.rank for n, t in good.items()}))
        return [early, unknown, options, closure, shape, dtype, name, one, other]

    ranks = on_ranks("data", work)
    assert ranks[0] == ranks[1]
    starts = [
        "the engine has no optimizer",
        "`*.bais`: no trained weight has such a name",
        "`SGD(learning_rate=0.1)` cannot take a step",
        "`LBFGS()` cannot take a step",
        "input `x` has 4 along `seq`, and other inputs have 5",
        "input `x` is int32[12, 5], and the program takes int64[12, 5]",
        "the batch has `x`, `z`; `y` is missing",
        "the batch has `x`; `y` is missing",
        "rank 1 was given another batch than rank 0",
    ]
    for start, text in zip(starts, ranks[0], strict=True):
        assert start in text and "help: " in text
    assert ranks[0][-2].startswith("rank 0: ")


def test_batches_that_differ_later_are_told_too() -> None:
    good = batches(1)[0]

    def work(engine: Engine) -> Any:
        engine.optimizer(torch.optim.SGD, lr=0.1)
        engine.step(good)
        later = said(engine, lambda e: e.step({n: t + engine.rank for n, t in good.items()}))
        shares = said(engine, lambda e: e.step({n: t[6 * e.rank :][:6] for n, t in good.items()}))
        judged = said(engine, lambda e: e.evaluate({n: t.flip(0) if e.rank else t for n, t in good.items()}))
        return later, shares, judged, engine.steps

    expected = "rank 1 was given another batch than rank 0"
    for later, shares, judged, steps in on_ranks("data", work):
        assert [text.split(":")[0] for text in (later, shares, judged)] == [expected] * 3
        assert steps == 1


def test_a_loss_that_is_no_number_updates_nothing() -> None:
    def work(engine: Engine) -> Any:
        engine.optimizer(torch.optim.SGD, lr=1.0)
        for held in engine.held():
            if held.name == "norm.weight":
                held.tensor.fill_(float("inf"))
        before = saved(engine)
        text = said(engine, lambda e: e.step(batches(1)[0]))
        after = saved(engine)
        allowed = engine.step(batches(1)[0], allow_nan=True)
        return text, engine.steps, all(torch.equal(before[n]["tensor"], after[n]["tensor"]) for n in before), allowed

    for text, steps, same, allowed in on_ranks("stages", work):
        assert text.startswith("the loss of step 0 is nan; nothing was updated") and "allow_nan" in text
        assert steps == 1 and same and allowed != allowed
