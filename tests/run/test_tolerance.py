"""What a plan may be off by is measured on the model: rounding passes, and so little else that a tiny mistake shows."""

import copy
from collections.abc import Callable

import pytest
import torch

from ssdsl.model.source import Model
from ssdsl.run.compare import Comparison, Limit, compare
from ssdsl.run.growth import measured_growth
from ssdsl.run.launch import Training
from ssdsl.run.nudge import nudged, precision
from ssdsl.run.reference import Trained, reference
from ssdsl.run.verify import RUNS

SGD = Training(steps=2, optimizer="sgd", lr=0.1)
Change = Callable[[torch.Tensor], torch.Tensor]


class Faint(torch.nn.Module):
    """A layer with gradients ten million times smaller than the other's, and a bias that softmax ignores."""

    def __init__(self) -> None:
        super().__init__()
        self.loud, self.faint = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)
        self.ignored = torch.nn.Parameter(torch.randn(1, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.loud(x).tanh() + 1e-7 * self.faint(x).tanh()
        attention = (h @ h.T + h @ self.ignored.T).softmax(1)  # a constant in each row
        return ((attention @ h) ** 2).mean()


class Cast(torch.nn.Module):
    """Weights in float32, mathematics in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(16, 32), torch.nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y = self.second(self.first(x).relu())
        return (y.float() ** 2).mean()


def model(module: Callable[[], torch.nn.Module] = Faint, dtype: torch.dtype = torch.float32, seed: int = 0) -> Model:
    torch.manual_seed(seed)
    return Model("m", module().to(dtype), ({"x": torch.randn(32, 16, dtype=dtype)},), {"x": ("batch", "feature")})


def compared(given: Model, plan: Trained) -> dict[str, Comparison]:
    single = reference(given, SGD)
    growth = measured_growth(given, SGD, single, None, range(RUNS))
    return {c.name: c for c in compare(plan, single, growth)}


def parts(given: Model, count: int) -> Trained:
    """The same training with the batch in parts: sums in another order."""
    cut = reference(Model("m", Parts(given.module, count), given.batches, given.axes), SGD)

    def named(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name.removeprefix("inside."): tensor for name, tensor in tensors.items()}

    return Trained(cut.losses, tuple(map(named, cut.grads)), named(cut.weights), named(cut.buffers))


class Parts(torch.nn.Module):
    """The mean loss of the parts of a batch."""

    def __init__(self, inside: torch.nn.Module, count: int) -> None:
        super().__init__()
        self.inside, self.count = copy.deepcopy(inside), count

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([self.inside(part) for part in x.chunk(self.count)]).mean()


def test_a_unit_in_the_last_place() -> None:
    given = model()
    given.module.loud.bias.data[:3] = torch.tensor([0.0, 1.0, -0.75])
    moved = nudged(given, 1, torch.float32).module.loud.bias.detach()[:3] - given.module.loud.bias.detach()[:3]
    assert moved.abs().tolist() == [0.0, 2.0**-23, 2.0**-24]
    coarse = nudged(given, 1, torch.bfloat16).module.loud.bias.detach()[:3] - given.module.loud.bias.detach()[:3]
    assert coarse.abs().tolist() == [0.0, 2.0**-7, 2.0**-8]


def test_whole_numbers_among_the_inputs_stay() -> None:
    given = Model("m", Faint(), ({"x": torch.tensor([1.0, 0.0, -torch.inf, 0.3])},), {})
    same = nudged(given, 1, torch.float32).batches[0]["x"] == given.batches[0]["x"]
    assert same.tolist() == [True, True, True, False]


@pytest.mark.parametrize(
    ("module", "dtype", "found"),
    [
        (Faint, torch.float32, torch.float32),
        (Faint, torch.bfloat16, torch.bfloat16),
        (Cast, torch.float32, torch.bfloat16),
    ],
)
def test_precision(module: Callable[[], torch.nn.Module], dtype: torch.dtype, found: torch.dtype) -> None:
    assert precision(model(module, dtype)) == found


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_parts_of_the_batch_under_autocast_pass(dtype: torch.dtype, seed: int) -> None:
    given = model(Cast, dtype, seed)
    found = compared(given, parts(given, 4))
    assert [c.name for c in found.values() if c.differs] == []


WRONG: dict[str, Change] = {
    "dropped": torch.zeros_like,
    "times -3": lambda g: -3 * g,
    "times 1.0001": lambda g: 1.0001 * g,
    "one element": lambda g: g.index_put((torch.tensor(0),), g[0] * 1.001 + g.abs().max() * 1e-4),
}


@pytest.mark.parametrize("change", WRONG)
@pytest.mark.parametrize("name", ["loud.weight", "faint.weight", "faint.bias"])
def test_a_gradient_is_found_wrong_however_small(name: str, change: str) -> None:
    given = model()
    plan = reference(given, SGD)
    assert plan.grads[0]["faint.weight"].abs().max() < 1e-6 * plan.grads[0]["loud.weight"].abs().max()
    plan.grads[0][name] = WRONG[change](plan.grads[0][name])
    found = compared(given, plan)
    assert [c.name for c in found.values() if c.differs] == [f"step 0 {name}"]


def test_a_gradient_of_rounding_only_may_be_another_but_not_zero() -> None:
    given = model()
    plan = reference(given, SGD)
    name = "step 0 ignored"
    noise = plan.grads[0]["ignored"]
    assert 0 < noise.abs().max() < 1e-6 * plan.grads[0]["loud.weight"].abs().max()
    plan.grads[0]["ignored"] = -noise
    assert not compared(given, plan)[name].differs
    plan.grads[0]["ignored"] = torch.zeros_like(noise)
    found = compared(given, plan)[name]
    assert found.differs and found.limit is Limit.ZERO


def test_a_gradient_that_one_device_does_not_have() -> None:
    given = model()
    given.module.faint.bias.requires_grad_(False)
    plan = reference(given, SGD)
    plan.grads[0]["faint.bias"] = torch.full((16,), 1e-20)
    found = compared(given, plan)
    assert [c.name for c in found.values() if c.differs] == ["step 0 faint.bias"]
