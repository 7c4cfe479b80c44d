"""A run is compared with tensors that another program saved: a script of torch alone, which knows nothing of ssdsl."""

import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from ssdsl.compile import compile_plan
from ssdsl.model.load.model import Model
from ssdsl.run.in_process.run_in_process import program_of, run_in_process
from ssdsl.run.verify import errors
from ssdsl.run.verify.against import Against, begun_as, check_comparable, compare_other, other_difference
from ssdsl.run.verify.other_program import OtherProgram, read_other
from ssdsl.runtime.options import Training
from ssdsl.text.diagnostic import REGISTRY, Diagnostic, PlanError
from ssdsl.text.render import render
from tests.captured import captured
from tests.cli.commands import call

ERRORS = Path(__file__).parent.parent.parent / "errors"
NET = """\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(12, 16), nn.BatchNorm1d(16), nn.Linear(16, 4)

    def forward(self, x, y):
        return nn.functional.cross_entropy(self.down(torch.relu(self.norm(self.up(x)))), y)

def net():
    batch = {"x": torch.randn(8, 12), "y": torch.randint(0, 4, (8,))}
    return Net(), batch, {"x": ("batch", "feature"), "y": ("batch",)}
"""
PLAN = "mesh gpus(dp = 2)\nsplit model by batch into dp\nassign model to gpus\n"
STEPS = 2
Tensors = dict[str, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model and the plan."""
    here = tmp_path_factory.mktemp("against")
    (here / "mynet.py").write_text(NET)
    (here / "plan.ssp").write_text(PLAN)
    return here


@cache
def net(folder: Path) -> Model:
    return captured(f"{folder / 'mynet.py'}:net")[0]


def saved(folder: Path, change: Callable[[nn.Module, int], None] = lambda module, step: None) -> Tensors:
    """What a plain loop of torch saves, which begins with weights and batches of its own. `change` makes it wrong."""
    torch.manual_seed(11)
    module = type(net(folder).module)()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    found: Tensors = {f"start/{name}": p.detach().clone() for name, p in module.named_parameters()}
    for step in range(STEPS):
        batch = {"x": torch.randn(8, 12), "y": torch.randint(0, 4, (8,))}
        optimizer.zero_grad()
        loss = module(**batch)
        loss.backward()
        change(module, step)
        found |= {f"batch/{step}/{name}": tensor for name, tensor in batch.items()} | {f"loss/{step}": loss.item()}
        found |= {f"grad/{step}/{name}": p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}
        optimizer.step()
    return found | {f"weight/{name}": tensor for name, tensor in module.state_dict().items()}


def read(folder: Path, tensors: Any, name: str = "theirs.pt") -> OtherProgram:
    torch.save(tensors, folder / name)
    return read_other(folder / name, net(folder))


def compared(folder: Path, tensors: Any, training: Training | None = None) -> tuple[Against, Diagnostic | None]:
    """The comparison with a file of these tensors, and the first difference."""
    training = training or Training(STEPS, optimizer="sgd", lr=0.1)
    other = read(folder, tensors)
    check_comparable(other, training.steps)
    model = begun_as(net(folder), other, training.steps)
    graph = captured(f"{folder / 'mynet.py'}:net")[1]
    finished = run_in_process(program_of(compile_plan(folder / "plan.ssp", graph, {}).program, model), training)
    found = compare_other(model, training, finished.losses, finished.dumps, other)
    return found, other_difference(found, agrees=True)


def refused(folder: Path, tensors: Any) -> list[Diagnostic]:
    with pytest.raises(PlanError) as raised:
        compared(folder, tensors)
    return [*raised.value.diagnostics]


def test_a_plain_loop_computes_the_same(folder: Path) -> None:
    found, wrong = compared(folder, saved(folder))
    assert wrong is None, render(wrong)
    kinds = [c.kind for c in found.comparisons]
    assert {kind: kinds.count(kind) for kind in kinds} == {"loss": 2, "gradient": 12, "weight": 6, "buffer": 3}
    assert not found.lacking and not found.said


def test_each_is_optional_and_what_lacks_is_said(folder: Path) -> None:
    whole = saved(folder)
    some = {k: t for k, t in whole.items() if k.startswith(("start/", "batch/")) or k == "grad/1/down.bias"}
    found, wrong = compared(folder, some)
    assert wrong is None and [c.name for c in found.comparisons] == ["step 1 down.bias"]
    assert ("loss", "step 0") in found.lacking and ("weight", "up.weight") in found.lacking


def test_a_wrong_gradient_is_named(folder: Path) -> None:
    def change(module: nn.Module, step: int) -> None:
        if step == 1:
            module.get_parameter("down.bias").grad[2] += 1e-3  # type: ignore[index]

    _, wrong = compared(folder, saved(folder, change))
    assert isinstance(wrong, errors.ProgramsDiffer)
    assert (wrong.what, wrong.name) == ("step 1's gradient", "down.bias") and "at [2]" in wrong.where


def test_a_sum_over_ranks_in_place_of_a_mean_is_recognised(folder: Path) -> None:
    def double(module: nn.Module, step: int) -> None:
        for parameter in module.parameters():
            assert parameter.grad is not None
            parameter.grad *= 2

    _, wrong = compared(folder, saved(folder, double))
    assert isinstance(wrong, errors.ProgramsDiffer)
    assert wrong.ratio == "it is 2 times the plan's, in every element" and "average gradients" in wrong.change


def test_another_learning_rate_shows_in_the_weights(folder: Path) -> None:
    first = {k: t for k, t in saved(folder).items() if "/1" not in k and not k.startswith("grad")}
    _, wrong = compared(folder, first, Training(STEPS, optimizer="sgd", lr=0.2))
    assert isinstance(wrong, errors.ProgramsDiffer) and wrong.what == "weight"


@pytest.mark.parametrize(
    "prefix",
    ["module.", "_orig_mod.", "module._orig_mod.", "_fsdp_wrapped_module.", "module._checkpoint_wrapped_module."],
)
def test_prefixes_of_wrappers_are_left_out_and_said(folder: Path, prefix: str) -> None:
    def wrapped(key: str) -> str:
        kind, _, name = key.rpartition("/")
        return key if key.startswith(("batch", "loss")) else f"{kind}/{prefix}{name}"

    other = read(folder, {wrapped(key): tensor for key, tensor in saved(folder).items()})
    assert other.unknown is None and set(other.grads[0]) == set(dict(net(folder).module.named_parameters()))
    assert other.said == (f"`{prefix}` is left out of 27 names",)


def test_a_prefix_that_the_file_lacks_is_put_in_front(folder: Path) -> None:
    other = read(folder, {"grad/0/weight": torch.ones(16), "grad/0/running": torch.ones(1)})
    assert other.unknown is not None and not other.grads  # of `weight` there are three
    other = read(folder, {"weight/running_mean": torch.ones(16), "weight/running_var": torch.ones(16)})
    assert set(other.state) == {"norm.running_mean", "norm.running_var"}
    assert other.said == ("`norm.` is put in front of 2 names",)


def test_nested_dicts_and_a_state_dict(folder: Path) -> None:
    module = net(folder).module
    grads = [{name: torch.zeros_like(p) for name, p in module.named_parameters()}]
    other = read(folder, {"grad": grads, "loss": [1.5]})
    assert other.losses == {0: 1.5} and set(other.grads[0]) == set(dict(module.named_parameters()))
    other = read(folder, module.state_dict())
    assert set(other.state) == set(module.state_dict()) and "weights after the last step" in other.said[0]
    other = read(
        folder, {"model": module.state_dict(), "optim": {"state": {0: {"step": torch.tensor(2.0)}}}, "steps": 2}
    )
    assert set(other.state) == set(module.state_dict()) and other.unknown is None and "`model`" in other.said[0]


def test_safetensors(folder: Path) -> None:
    save_file({"loss/0": torch.tensor(1.5), "weight/up.bias": torch.zeros(16)}, folder / "theirs.safetensors")
    other = read_other(folder / "theirs.safetensors", net(folder))
    assert other.losses == {0: 1.5} and list(other.state) == ["up.bias"]


def test_shapes_and_types_are_refused(folder: Path) -> None:
    wrong = {"grad/0/up.bias": torch.zeros(8), "batch/0/x": torch.zeros(4, 12), "loss/0": torch.zeros(2)}
    found = refused(folder, wrong)
    assert [getattr(d, "name", None) for d in found] == ["grad/0/up.bias", "batch/0/x", "loss/0"]
    assert all(isinstance(d, errors.TensorsMisfit) for d in found)
    (found_type,) = refused(folder, {"batch/0/y": torch.zeros(8)})
    assert "float32 [8]" in render(found_type) and "int64 [8]" in render(found_type)


def test_unknown_names_are_said(folder: Path) -> None:
    other = read(folder, {"loss/0": 1.0, "grad/0/dwn.bias": torch.zeros(4), "grad/x": torch.zeros(1), "seed": 3})
    assert (
        other.unknown is not None and other.unknown.count == "3 tensors" and "`grad/0/dwn.bias`" in other.unknown.listed
    )


def test_later_steps_are_left_out_with_the_weights_behind_them(folder: Path) -> None:
    found, wrong = compared(folder, saved(folder), Training(1, optimizer="sgd", lr=0.1))
    assert wrong is None and {c.kind for c in found.comparisons} == {"loss", "gradient"}
    assert any("--steps 2 compares them" in sentence for sentence in found.said)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"PK\x03\x04 no file of torch", "cannot be read"),
        (b"", "cannot be read"),
        ([torch.zeros(1)], "not tensors by name"),
        ({"name": "text"}, "no tensors by name"),
        (nn.Linear(2, 2), "other objects than tensors"),
        ({"start/up.bias": torch.zeros(16)}, "nothing to compare"),
    ],
)
def test_wrong_files(folder: Path, content: Any, reason: str) -> None:
    file = folder / "wrong.pt"
    file.write_bytes(content) if isinstance(content, bytes) else torch.save(content, file)
    with pytest.raises(PlanError) as raised:
        check_comparable(read_other(file, net(folder)), 1)
    assert reason in render(raised.value.diagnostics[0])


def test_no_file_and_a_folder(folder: Path) -> None:
    for path, reason in ((folder / "nowhere.pt", "there is no such file"), (folder, "it is a folder")):
        with pytest.raises(PlanError) as raised:
            read_other(path, net(folder))
        assert reason in render(raised.value.diagnostics[0])


DDP = """\
import os, sys, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from mynet import Net

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(3)
module = Net()
module.norm.eval()  # of a batch norm each rank of DDP has other statistics
model = DistributedDataParallel(module)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
saved = {f"start/{name}": p.detach().clone() for name, p in model.named_parameters()}
for step in range(3):
    batch = {"x": torch.randn(8, 12), "y": torch.randint(0, 4, (8,))}
    optimizer.zero_grad()
    loss = model(**{name: tensor.chunk(2)[rank] for name, tensor in batch.items()})
    loss.backward()
    dist.all_reduce(whole := loss.detach() / 2)
    saved |= {f"batch/{step}/{name}": t for name, t in batch.items()} | {f"loss/{step}": whole}
    saved |= {f"grad/{step}/{name}": p.grad.clone() for name, p in model.named_parameters()}
    optimizer.step()
saved |= {f"weight/{name}": p.detach() for name, p in model.named_parameters()}
if rank == 0:
    torch.save(saved, "ddp.pt")
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_ddp_on_two_processes(tmp_path: Path) -> None:
    (tmp_path / "mynet.py").write_text(
        NET.replace("    return Net(), batch", "    n = Net()\n    n.norm.eval()\n    return n, batch")
    )
    (tmp_path / "plan.ssp").write_text(PLAN)
    (tmp_path / "theirs.py").write_text(DDP)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "theirs.py"]
    environment = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **os.environ}
    subprocess.run(launch, cwd=tmp_path, check=True, timeout=200, env=environment)
    words = "verify plan.ssp --model mynet.py:net --optimizer adamw --lr 0.01 --against ddp.pt".split()
    done = call(*words, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "`module.` is left out of 30 names" in done.stdout and "tensors here and in ddp.pt" in done.stdout
    done = call(*words, "--json", "--steps", "2", folder=tmp_path)
    assert done.returncode == 0 and '"against"' in done.stdout


# -- texts -------------------------------------------------------------------------------------------------------------

SHOWN: tuple[Diagnostic, ...] = (
    errors.TensorsUnreadable(None, "theirs.pt", "there is no such file", "give another file"),
    errors.TensorsMisfit(
        None, "theirs.pt", "grad/0/fc.weight", "float32 [4, 2]", "float32 [8, 2]", "save the whole tensor"
    ),
    errors.TensorsUnknown(
        None, "theirs.pt", "a tensor", "`grad/0/fd.weight`", "those of the model are like `fc.weight`"
    ),
    errors.NothingToCompare(None, "theirs.pt", "it has weights at the start"),
    errors.ProgramsDiffer(
        None,
        "theirs.pt",
        "step 0's gradient",
        "fc.bias",
        "largest error 0.1 at [2]",
        0.1,
        0.2,
        "allowed: 2.4e-07, with 0.2 as the largest element: the rounding of a sum",
        "it is 2 times the plan's, in every element",
        "1 of 23 tensors differ",
        "the plan equals a single device, which began with the same weights",
        "average gradients over ranks and micro-batches, and save them before they are scaled or clipped",
    ),
)


@pytest.mark.parametrize("shown", SHOWN, ids=lambda d: str(d.code))
def test_its_text(shown: Diagnostic, golden: Callable[[Path, str], None]) -> None:
    golden(ERRORS / f"{shown.code}.err", render(shown) + "\n")


def test_each_is_shown_and_explained() -> None:
    own = {code for code, cls in REGISTRY.items() if cls.__module__ == errors.__name__}
    assert own == {d.code for d in SHOWN} and all(REGISTRY[code].__doc__ for code in own)
