"""What a plan may be off by is measured on the model: rounding passes, and so little else that a tiny mistake shows."""

import copy
import math
from collections.abc import Callable

import pytest
import torch

from ssdsl.ir.program import Kernels
from ssdsl.model.load.model import Model
from ssdsl.record import replace
from ssdsl.run.in_process.precision import RoundedScalars, computing_in, in_type, nudged, precision, real_of
from ssdsl.run.verify.compare import Comparison, Limit, compare, tensors
from ssdsl.run.verify.error_growth import SingleDevice, growth_between, largest_of
from ssdsl.run.verify.single_device import Trained, reference, train
from ssdsl.run.verify.verify import reason
from ssdsl.runtime.options import Training
from ssdsl.show.tables.verdict import verdict_view

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
    device = SingleDevice(given, SGD)
    return {c.name: c for c in compare(plan, device.trained, device.growth, device.precision)}


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
    given.module.loud.bias.data[:3] = torch.tensor([0.0, 1.5, -0.75])
    moved = nudged(given, 1, torch.float32).module.loud.bias.detach()[:3] - given.module.loud.bias.detach()[:3]
    assert moved.abs().tolist() == [0.0, 2.0**-23, 2.0**-24]
    coarse = nudged(given, 1, torch.bfloat16).module.loud.bias.detach()[:3] - given.module.loud.bias.detach()[:3]
    assert coarse.abs().tolist() == [0.0, 2.0**-7, 2.0**-8]


def test_whole_numbers_stay() -> None:
    given = Model("m", torch.nn.LayerNorm(4), ({"x": torch.tensor([1.0, 0.0, -torch.inf, 0.3])},), {})
    given.module.weight.data[0] = 0.3
    moved = nudged(given, 1, torch.float32)
    assert (moved.batches[0]["x"] == given.batches[0]["x"]).tolist() == [True, True, True, False]
    assert (moved.module.weight == given.module.weight).tolist() == [False, True, True, True]


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


def test_a_gradient_that_is_one_rounding_in_a_row_may_be_zero() -> None:
    """Each number of a gradient of rows is rounded once, whatever the input has beside it."""
    given = model()
    single = reference(given, SGD)
    plan = reference(given, SGD)
    one_row, zero = (torch.zeros_like(single.grads[0]["faint.weight"]) for _ in range(2))
    one_row[1] = 1e-17
    single.grads[0]["faint.weight"], plan.grads[0]["faint.weight"] = one_row, zero
    growth = largest_of([growth_between(single, single)])
    missing = [c.missing for c in compare(plan, single, growth) if c.name == "step 0 faint.weight"]
    assert missing == [False]
    single.grads[0]["faint.weight"] = torch.full_like(one_row, 1e-17)
    assert [c.missing for c in compare(plan, single, growth) if c.name == "step 0 faint.weight"] == [True]


@pytest.mark.parametrize(("size", "differs"), [(2e-16, False), (2e-12, True)])
def test_a_gradient_that_cancels_rounds_as_its_addends_do(size: float, differs: bool) -> None:
    """On one device it cancels nearly exactly by chance; the largest gradient is about one."""
    given = model(dtype=torch.float64)
    single = reference(given, SGD)
    single.grads[0]["loud.weight"][0, 0] = 1.0
    plan = copy.deepcopy(single)
    single.grads[0]["ignored"], plan.grads[0]["ignored"] = (torch.full((1, 16), x) for x in (1e-31, size))
    growth = largest_of([growth_between(single, copy.deepcopy(single))])
    growth["gradient", "step 0 ignored"] = 3e-31
    found = {c.name: c for c in compare(plan, single, growth, torch.float64)}
    assert found["step 0 ignored"].differs == differs


def test_a_gradient_that_one_device_does_not_have() -> None:
    given = model()
    given.module.faint.bias.requires_grad_(False)
    plan = reference(given, SGD)
    plan.grads[0]["faint.bias"] = torch.full((16,), 1e-20)
    found = compared(given, plan)
    assert [c.name for c in found.values() if c.differs] == ["step 0 faint.bias"]


@pytest.mark.parametrize(
    ("name", "choose"),
    {
        "max": torch.max,
        "min": torch.min,
        "median": torch.median,
        "largest size": lambda x: x.abs().max(),
        "norm of infinity": lambda x: torch.linalg.vector_norm(x, math.inf),
    }.items(),
)
def test_a_number_that_is_chosen_stays(name: str, choose: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Its backward looks for it among the elements, and divides zero by zero where it is not."""
    x = torch.randn(40, requires_grad=True)
    with RoundedScalars(0):
        choose(x).backward()
    assert x.grad is not None and float(x.grad.abs().sum()) == pytest.approx(1)


def test_a_number_that_is_computed_moves() -> None:
    x = torch.rand(40)
    with RoundedScalars(0):
        moved = x.sum()
    assert abs(float(moved - x.sum())) == pytest.approx(2**-19)  # one unit of a number from 16 to 32


class Centred(torch.nn.Module):
    """Values less their mean, of which the mean is taken: the gradient of what makes them is zero."""

    def __init__(self) -> None:
        super().__init__()
        self.front, self.head = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.front(x).unflatten(0, (16, 2))
        return self.head((x - x.mean(1, keepdim=True)).mean(1)).exp().sum()


def test_a_gradient_that_cancels_exactly_may_be_rounding_in_another_order() -> None:
    """A mean of two numbers is exact, and that of unequal parts, added in another order, is not."""
    given = model(Centred, torch.float64)
    device = SingleDevice(given, Training(steps=1, optimizer="sgd", lr=0.1))
    single = device.trained
    assert not single.grads[0]["front.weight"].any()
    for size, differs in ((1e-18, False), (1e-12, True)):
        plan = copy.deepcopy(single)
        plan.grads[0]["front.weight"][3, 2] = size
        found = compare(plan, single, device.growth_of_many, device.precision)
        assert [c.name for c in found if c.differs] == ["step 0 front.weight"] * differs


class Shifted(torch.nn.Module):
    """A shift whose gradient is a sum of tenths that cancel: no weight has a part in what is left."""

    def __init__(self) -> None:
        super().__init__()
        self.front, self.shift = torch.nn.Linear(16, 16), torch.nn.Parameter(torch.randn(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tenths = x / 10
        return self.front(tenths).tanh().square().mean() + (self.shift * tenths.sum(0)).sum()


def shifted() -> Model:
    """Whole numbers, which are no measured ones: they stay as they are where last digits are wrong."""
    given = model(Shifted, torch.float64)
    column = torch.tensor([1.0, 2.0, -3.0, 4.0, 7.0, -11.0, 3.0, -3.0] * 4, dtype=torch.float64)
    return replace(given, batches=({"x": torch.stack([column.roll(n) for n in range(16)], 1)},))


def test_a_sum_of_which_nothing_is_left_is_judged_by_its_addends() -> None:
    """What is left has the digits of an order of addition: all runs of the single device have the same."""
    device = SingleDevice(shifted(), Training(steps=1, optimizer="sgd", lr=0.1))
    single, name = device.trained, "step 0 shift"
    left = single.grads[0]["shift"]
    assert 0 < left.abs().max() < 1e-14 and device.growth["gradient", name] < 1e-3 * left.abs().max()
    for change, limit in ((2 * left, None), (left + 1e-9, Limit.GROWTH), (torch.zeros_like(left), Limit.ZERO)):
        plan = copy.deepcopy(single)
        plan.grads[0]["shift"] = change
        found = compare(plan, single, device.growth_of_many, device.precision)
        assert [(c.name, c.limit) for c in found if c.differs] == ([(name, limit)] if limit else [])


def test_a_mistake_of_a_hundredth_is_found_beside_such_a_sum() -> None:
    device = SingleDevice(shifted(), Training(steps=1, optimizer="sgd", lr=0.1))
    for name in ("front.weight", "front.bias"):
        plan = copy.deepcopy(device.trained)
        plan.grads[0][name] *= 1.01
        found = compare(plan, device.trained, device.growth_of_many, device.precision)
        assert [c.name for c in found if c.differs] == [f"step 0 {name}"]


def test_in_float64_of_a_model_in_float32_such_a_sum_is_judged_alike() -> None:
    given = shifted()
    lower = replace(
        given, module=given.module.float(), batches=tuple({n: t.float() for n, t in b.items()} for b in given.batches)
    )
    device = SingleDevice(lower, Training(steps=1, optimizer="sgd", lr=0.1))
    exact = device.exact
    assert exact is not None
    plan = copy.deepcopy(exact)
    plan.grads[0]["shift"] *= 2
    found = compare(plan, exact, device.exact_growth(exact, None))
    assert not any(c.differs for c in found)


def test_a_gradient_of_zeros_that_rounds_otherwise_has_no_infinite_error() -> None:
    """An error relative to zero is none: the table names another tensor as the worst."""
    given = model(Centred, torch.float64)
    device = SingleDevice(given, Training(steps=1, optimizer="sgd", lr=0.1))
    plan = copy.deepcopy(device.trained)
    plan.grads[0]["front.weight"][3, 2] = 1e-18
    found = compare(plan, device.trained, device.growth_of_many, device.precision)
    (off,) = (c for c in found if c.name == "step 0 front.weight")
    assert off.is_rounding and not off.differs and off.largest == 0
    rows = [row for row in verdict_view(found).rows if row[0] == "gradients"]
    assert math.inf not in rows[0] and rows[0][-1] != "step 0 front.weight"
    alone = verdict_view((off,)).rows[0]
    assert alone[4] == "rounding"


def test_runs_that_are_not_finite_do_not_count() -> None:
    single = Trained((1.0,), ({"w": torch.tensor([1.0, math.inf])},), {}, {})
    nan = growth_between(single, Trained((math.nan,), ({"w": torch.tensor([math.nan, 2.0])},), {}, {}))
    off = growth_between(single, Trained((1.5,), ({"w": torch.tensor([1.25, math.nan])},), {}, {}))
    assert nan == {("loss", "step 0"): math.inf, ("gradient", "step 0 w"): math.inf}
    assert largest_of([nan, off, nan]) == off == {("loss", "step 0"): 0.5, ("gradient", "step 0 w"): 0.25}
    assert largest_of([nan, nan]) == nan


def test_what_no_run_can_measure_is_said_to_be_not_compared() -> None:
    given = model()
    device = SingleDevice(given, SGD)
    growth = dict(device.growth)
    growth["gradient", "step 0 loud.bias"] = math.inf
    found = compare(device.trained, device.trained, growth)
    [unknown] = [c for c in found if c.limit is Limit.UNKNOWN]
    assert unknown.name == "step 0 loud.bias" and "infinite or NaN" in reason(unknown)
    notes = [n for n in verdict_view(found).notes if n.startswith("not compared")]
    assert len(notes) == 1 and notes[0].endswith("gradient step 0 loud.bias")


class Read(torch.nn.Module):
    """A row of four that most of 32,768 tokens read."""

    def __init__(self) -> None:
        super().__init__()
        self.book = torch.nn.Embedding(4, 8)
        self.tokens = (torch.rand(32, 1024) ** 8 * 4).long()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.book(self.tokens[: len(x)]) - x.mean(-1)[:, None, None]).square().mean()


def test_a_long_sum_is_as_inexact_as_it_is() -> None:
    """The single device adds one after another; an exact plan is right, and one that is off by a hundredth is not."""
    given = model(Read)
    device = SingleDevice(given, SGD)
    assert device.exact is not None
    exact = Trained(device.exact.losses, device.exact.grads, device.exact.weights, device.exact.buffers)
    assert not any(c.differs for c in compare(exact, device.trained, device.growth))
    row = exact.grads[0]["book.weight"]
    row[0, 3] += 1e-2 * row.abs().max()
    assert [c.name for c in compare(exact, device.trained, device.growth) if c.differs] == ["step 0 book.weight"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["autocast", "bfloat16"])
def test_in_float64_nothing_rounds_to_less(dtype: torch.dtype) -> None:
    given = model(Cast, dtype)
    wide = in_type(given, torch.float64)
    with computing_in(torch.float64):
        exact = train(wide, SGD)
        assert torch.zeros(1).dtype == torch.float64
    assert torch.zeros(1).dtype == torch.float32
    plain = copy.deepcopy(given.module).double()
    for batch in (given.batches[0]["x"].double(),):
        (plain.second(plain.first(batch).relu()) ** 2).mean().backward()
    for name, weight in plain.named_parameters():
        assert weight.grad is not None
        torch.testing.assert_close(exact.grads[0][name], weight.grad, rtol=1e-12, atol=1e-15)


def test_tensors_that_are_all_rounding_are_named_apart() -> None:
    given = model()
    device = SingleDevice(given, SGD)
    plan = reference(given, SGD)
    plan.grads[0]["ignored"] *= -1
    found = compare(plan, device.trained, device.growth, device.precision)
    view = verdict_view(found)
    [gradients] = [row for row in view.rows if row[0] == "gradients"]
    assert "ignored" not in str(gradients[-1]) and gradients[-3] == 0.0
    assert "all rounding, as if zero in exact arithmetic: gradient step 0 ignored and step 1 ignored" in view.notes


class Predicted(torch.nn.Module):
    """A classifier that is so sure of the right class that its loss is zero; `scale` makes it less sure."""

    def __init__(self, scale: float = 1e4) -> None:
        super().__init__()
        self.scale, self.head = scale, torch.nn.Linear(16, 16, bias=False)
        torch.nn.init.eye_(self.head.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self.head(x) * self.scale, x.argmax(1))


@pytest.mark.parametrize(("scale", "notes"), [(1e5, 1), (1.0, 0)])
def test_a_loss_of_zero_is_said_to_show_little(scale: float, notes: int) -> None:
    given = model(lambda: Predicted(scale))
    found = tuple(compared(given, SingleDevice(given, SGD).trained).values())
    said = [n for n in verdict_view(found).notes if "a mistake may not show" in n]
    assert [n.partition(";")[0] for n in said] == ["zero, up to rounding: loss step 0 and step 1"] * notes


def test_gradients_of_zero_are_said_to_show_little() -> None:
    class Flat(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = torch.nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (self.head(x) + 1e3).clamp(max=1.0).sum()

    given = model(Flat)
    found = tuple(compared(given, SingleDevice(given, SGD).trained).values())
    assert any(n.startswith("zero, up to rounding: every gradient;") for n in verdict_view(found).notes)


def test_both_parts_of_complex_numbers_are_compared() -> None:
    expected = torch.tensor([1 + 1j, 2 - 1j])
    found = tensors("weight", "w", torch.tensor([1 + 1j, 2 - 3j]), expected)
    assert (found.index, found.error, found.elements) == ((1, 1), 2.0, 4)
    assert tensors("weight", "w", expected, expected).error == 0


def test_both_parts_of_complex_weights_are_nudged() -> None:
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(torch.tensor([0.3 + 0.7j]))
    (weight,) = nudged(Model("m", module, ({},), {}), 0, torch.float32).module.parameters()
    assert bool((real_of(weight) != real_of(module.weight)).all()) and torch.allclose(weight, module.weight)


def test_a_sparse_gradient_is_left_as_it_is() -> None:
    """It is made of rows that have been moved, and torch compares no sparse tensors."""
    table, rows = torch.nn.Embedding(5, 3, sparse=True), torch.tensor([0, 2, 2])
    with RoundedScalars(0, elements=True):
        table(rows).square().sum().backward()  # type: ignore[no-untyped-call]
    assert table.weight.grad is not None and table.weight.grad.is_sparse


def test_compiled_kernels_may_round_as_they_do_on_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def rough(graph: torch.fx.GraphModule, _: object) -> Callable[..., tuple[torch.Tensor, ...]]:
        """A backend whose kernels are off by a thousandth."""
        return lambda *args: tuple(1.001 * result for result in graph(*args))

    monkeypatch.setattr("ssdsl.run.verify.error_growth.BACKEND", rough)
    kernels = Kernels.EAGER, Kernels.COMPILED
    eager, compiled = (SingleDevice(model(Faint), SGD, None, kind).growth_of_many for kind in kernels)
    name = "loss", "step 0"
    assert eager[name] < 1e-3 * compiled[name]
