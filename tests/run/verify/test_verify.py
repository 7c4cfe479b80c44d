"""The comparison with a single device: equal runs pass, one wrong element anywhere is found and named."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ssdsl.model.load.model import Model
from ssdsl.record import replace
from ssdsl.run.results import read_result
from ssdsl.run.verify.compare import Comparison, compare, tensors
from ssdsl.run.verify.error_growth import SingleDevice
from ssdsl.run.verify.single_device import Trained, reference
from ssdsl.run.verify.verify import difference, verify
from ssdsl.runtime.options import Training
from ssdsl.show.tables.verdict import verdict_view
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.render import render

SGD = Training(steps=3, optimizer="sgd", lr=0.1)
ADAMW = Training(steps=3, optimizer="adamw", lr=1e-3)

NAN, INF = float("nan"), float("inf")


class Net(torch.nn.Module):
    """Tied weights, batch norm, and a bias before it, whose gradient is zero but for rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.norm, self.outside = torch.nn.Linear(6, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 6)
        self.outside.weight = self.inside.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.outside(self.norm(self.inside(x))) ** 2).mean()


@pytest.fixture
def model() -> Model:
    torch.manual_seed(0)
    batches = tuple({"x": torch.randn(8, 6)} for _ in range(2))
    return Model("net", Net().train(), batches, {"x": ("batch", "feature")})


def whole(tensor: torch.Tensor) -> dict[str, Any]:
    return {"shape": tuple(tensor.shape), "takes": [], "tensor": tensor}


def dump(trained: Trained, out: Path, names: dict[str, str] | None = None) -> None:
    """Write what a program of one rank would, with some tensors under other names."""

    def pieces(tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
        return {(names or {}).get(name, name): whole(tensor) for name, tensor in tensors.items()}

    steps = len(trained.losses)
    content = {"weights": pieces(trained.weights), "buffers": pieces(trained.buffers)}
    torch.save({**content, "grads": [pieces(g) for g in trained.grads]}, out / "rank0.pt")
    result = {"rank": 0, "role": "all", "losses": trained.losses, "step_s": [0.1] * steps, "peak_bytes": 1, "comm": {}}
    (out / "rank0.json").write_text(json.dumps(result))


@pytest.mark.parametrize("training", [SGD, ADAMW], ids=["sgd", "adamw"])
def test_equal_runs(model: Model, training: Training, tmp_path: Path) -> None:
    dump(reference(model, training), tmp_path)
    found = verify(model, training, read_result(tmp_path, 3, range(1)))
    assert difference(found) is None
    assert [row[:2] for row in verdict_view(found).rows] == [
        ("losses", 3),
        ("gradients", 15),
        ("weights", 5),
        ("buffers", 3),
    ]


def test_the_module_is_left_alone(model: Model) -> None:
    before = copy.deepcopy(model.module.state_dict())
    reference(model, SGD)
    assert all(torch.equal(before[name], value) for name, value in model.module.state_dict().items())


def test_a_module_that_cannot_train_on_the_device_does_on_the_cpu(model: Model) -> None:
    there = SingleDevice(model, replace(SGD, device="meta")).trained
    assert there.losses == reference(model, SGD).losses
    assert all(tensor.device.type == "cpu" for tensor in there.weights.values())


def test_a_tied_weight_may_go_by_its_other_name(model: Model, tmp_path: Path) -> None:
    dump(reference(model, SGD), tmp_path, {"inside.weight": "outside.weight"})
    assert difference(verify(model, SGD, read_result(tmp_path, 3, range(1)))) is None


def test_a_weight_may_lie_transposed_in_memory(model: Model) -> None:
    """As those that `torch.linalg.qr` makes; the ranks' gradients, with which AdamW steps, are contiguous."""
    inside = model.module.inside
    inside.weight.data = inside.weight.data.mT.contiguous().mT
    plan = reference(model, ADAMW)
    contiguous = tuple({name: grad.contiguous() for name, grad in step.items()} for step in plan.grads)
    followed = SingleDevice(model, ADAMW, contiguous).trained
    assert all(torch.equal(plan.weights[name], weight) for name, weight in followed.weights.items())


@pytest.mark.parametrize("training", [SGD, ADAMW], ids=["sgd", "adamw"])
def test_other_order_of_sums_passes(model: Model, training: Training) -> None:
    """The same run in fp64, rounded: as far from the reference as any order of sums."""
    exact = Model(
        model.name, copy.deepcopy(model.module).double(), tuple({"x": b["x"].double()} for b in model.batches), {}
    )
    plan = rounded(reference(exact, training))
    assert difference(compared(model, training, plan)) is None


def compared(model: Model, training: Training, plan: Trained) -> tuple[Comparison, ...]:
    """The comparison without files."""
    device = SingleDevice(model, training, plan.grads if training is ADAMW else None)
    return compare(plan, device.trained, device.growth, device.precision)


def rounded(trained: Trained) -> Trained:
    def low(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {n: t.float() if t.is_floating_point() else t for n, t in tensors.items()}

    return Trained(trained.losses, tuple(map(low, trained.grads)), low(trained.weights), low(trained.buffers))


WRONG = {
    "gradient": lambda t: t.grads[1]["norm.weight"],
    "weight": lambda t: t.weights["outside.bias"],
    "buffer": lambda t: t.buffers["norm.running_var"],
}


@pytest.mark.parametrize("kind", WRONG)
def test_one_wrong_element(model: Model, kind: str, tmp_path: Path) -> None:
    plan = reference(model, SGD)
    WRONG[kind](plan)[2] *= 1.001
    dump(plan, tmp_path)
    found = difference(verify(model, SGD, read_result(tmp_path, 3, range(1))))
    assert found is not None and found.what == kind
    assert "at [2]" in found.where and "1 of 26 tensors differ" in render(found)


def test_a_wrong_loss(model: Model) -> None:
    single = reference(model, SGD)
    losses = (single.losses[0], single.losses[1] * 1.0001, single.losses[2])
    found = difference(compared(model, SGD, Trained(losses, single.grads, single.weights, single.buffers)))
    assert found is not None and (found.what, found.name) == ("loss", "step 1")


def test_nan_differs(model: Model) -> None:
    plan = reference(model, SGD)
    plan.weights["norm.bias"][1] = float("nan")
    found = difference(compared(model, SGD, plan))
    assert found is not None and found.name == "norm.bias"


def test_nan_in_both_is_equal() -> None:
    """A loss that overflows does so on the single device and on every rank."""
    found = tensors("gradient", "g", torch.tensor([NAN, INF, 1.0]), torch.tensor([NAN, INF, 1.0]))
    assert not found.differs and (found.error, found.largest) == (0.0, 1.0)
    assert tensors("gradient", "g", torch.tensor([NAN, 1.0]), torch.tensor([1.0, NAN])).differs
    assert tensors("gradient", "g", torch.tensor([-INF]), torch.tensor([INF])).differs


def test_adamw_without_weight_decay_is_found(model: Model, tmp_path: Path) -> None:
    plan = reference(model, ADAMW)
    for name, weight in plan.weights.items():
        weight += 3 * ADAMW.lr * 0.01 * model.module.get_parameter(name)
    dump(plan, tmp_path)
    found = difference(verify(model, ADAMW, read_result(tmp_path, 3, range(1))))
    assert found is not None and found.what == "weight"


def test_a_missing_gradient(model: Model, tmp_path: Path) -> None:
    plan = reference(model, SGD)
    del plan.grads[0]["norm.bias"]
    dump(plan, tmp_path)
    with pytest.raises(PlanError, match="do not hold all of step 0's gradient"):
        verify(model, SGD, read_result(tmp_path, 3, range(1)))


def test_a_missing_result(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="rank 0 ended without writing"):
        read_result(tmp_path, 1, range(1))
