"""`ssdsl checkpoint`: what it shows, and files of a single device that come back as they were."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from ssdsl.cli.main import main
from ssdsl.runtime.checkpoints.content import content_of
from ssdsl.runtime.checkpoints.reader import Checkpoint
from ssdsl.runtime.checkpoints.saver import Saver
from ssdsl.runtime.ranks.control import LoneControl
from ssdsl.runtime.step.parts import LocalTensor


@dataclass(frozen=True)
class Done:
    status: int
    out: str
    err: str


Run = Callable[..., Done]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Runs the command in a folder of its own, as on a terminal of 100 columns."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["ssdsl", "checkpoint", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return Done(int(ended.value.code or 0), *capsys.readouterr())

    return run


class Net(nn.Module):
    """Two layers that share a weight, batch norm, and a frozen weight."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.norm, self.two = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4, bias=False)
        self.two.weight = self.one.weight
        self.frozen = nn.Parameter(torch.randn(3), requires_grad=False)


def trained(steps: int = 2) -> tuple[Net, torch.optim.Optimizer]:
    net = Net()
    decayed = [(n, p) for n, p in net.named_parameters() if p.requires_grad and p.dim() > 1]
    others = [(n, p) for n, p in net.named_parameters() if p.requires_grad and p.dim() == 1]
    groups = [{"params": others, "weight_decay": 0.0}, {"params": decayed}]
    optimizer = torch.optim.AdamW(groups, lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        net.two(net.norm(net.one(torch.randn(8, 4)))).square().mean().backward()
        optimizer.step()
    return net, optimizer


def write(file: Path, optim: bool = True) -> tuple[Net, torch.optim.Optimizer]:
    net, optimizer = trained()
    saved = {"model": net.state_dict(), "steps": 2}
    torch.save({**saved, "optim": optimizer.state_dict()} if optim else saved, file)
    return net, optimizer


def test_torch_and_back(run: Run, tmp_path: Path) -> None:
    """A fresh model and optimizer on one device take what went through a checkpoint, to the bit."""
    net, optimizer = write(tmp_path / "before.pt")
    assert run("from-torch", "before.pt", "runs/a").status == 0
    assert (tmp_path / "runs/a/step-00000002/.metadata").exists()
    assert run("to-torch", "runs/a", "after.pt", "--optim").status == 0
    assert "error[E0508]: cannot write `none`" in run("to-torch", "runs/a", "none/after.pt").err
    found = torch.load("after.pt", weights_only=True)
    assert list(found["model"]) == list(net.state_dict()) and found["steps"] == 2
    for name, tensor in net.state_dict().items():
        assert found["model"][name].dtype == tensor.dtype and torch.equal(found["model"][name], tensor), name
    assert found["model"]["two.weight"].data_ptr() == found["model"]["one.weight"].data_ptr()
    fresh, again = trained(0)
    fresh.load_state_dict(found["model"])
    again.load_state_dict(found["optim"])
    for one, other in ((optimizer, again),):
        old, new = one.state_dict(), other.state_dict()
        assert old["param_groups"] == new["param_groups"] and old["state"].keys() == new["state"].keys()
        for number, values in old["state"].items():
            for key, value in values.items():
                assert torch.equal(new["state"][number][key], value), (number, key)


def test_a_plain_state_dict(run: Run, tmp_path: Path) -> None:
    torch.save({"w": torch.arange(3.0)}, tmp_path / "plain.pt")
    assert run("from-torch", "plain.pt", "a").status == 0
    assert Checkpoint.open(tmp_path / "a").whole(("model", "w")).tolist() == [0, 1, 2]
    assert "error[E0533]: the checkpoint `a/step-00000000` has no state" in run("to-torch", "a", "b.pt", "--optim").err


@pytest.mark.parametrize("shard_size", [5.0, 0.0000001])
def test_safetensors_and_back(run: Run, tmp_path: Path, shard_size: float, monkeypatch: pytest.MonkeyPatch) -> None:
    net, _ = write(tmp_path / "before.pt", optim=False)
    run("from-torch", "before.pt", "a")
    from ssdsl.run.checkpoints import convert

    convert.to_safetensors(convert.open_checkpoint("a"), tmp_path / "hf", round(shard_size * 1e9))
    files = sorted(p.name for p in (tmp_path / "hf").iterdir())
    assert ("model.safetensors" in files) == (shard_size == 5.0)
    assert (("model.safetensors.index.json" in files), len(files) > 2) == (shard_size != 5.0, shard_size != 5.0)
    assert run("from-safetensors", "hf", "b").status == 0
    found = Checkpoint.open(tmp_path / "b")
    expected = {name: t for name, t in net.state_dict().items() if name != "two.weight"}
    assert {path[0] for path in found.under("model")} == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found.whole(("model", name)), tensor)


def test_one_file_of_safetensors(run: Run, tmp_path: Path) -> None:
    save_file({"w": torch.ones(2).bfloat16()}, tmp_path / "in.safetensors")
    assert run("from-safetensors", "in.safetensors", "a").status == 0
    assert run("to-safetensors", "a", "out.safetensors").status == 0
    assert torch.equal(load_file(tmp_path / "out.safetensors")["w"], torch.ones(2).bfloat16())


def test_show(run: Run, tmp_path: Path) -> None:
    write(tmp_path / "net.pt")
    run("from-torch", "net.pt", "a")
    shown = run("show", "a").out
    for text in ("checkpoint a/step-00000002", "one.weight", "4×4", "float32", "exp_avg, exp_avg_sq"):
        assert text in shown
    assert "two.weight is one.weight" in shown and "steps" in shown
    found = json.loads(run("show", "a", "--json").out)
    rows = {row["tensor"]: row for row in found["tensors"]}
    assert rows["one.weight"] == {
        "tensor": "one.weight",
        "shape": "4×4",
        "type": "float32",
        "size_bytes": 64,
        "boxes": 1,
        "optimizer_state": "exp_avg, exp_avg_sq, step",
    }
    assert found["state"]["steps"] == "2"


def test_diff(run: Run, tmp_path: Path) -> None:
    def save(run: str, **tensors: torch.Tensor) -> None:
        Saver(LoneControl()).save(
            tmp_path / run, 1, content_of([LocalTensor.whole(n, t) for n, t in tensors.items()], {}, {}), wait=True
        )

    same, nan = torch.arange(4.0), torch.tensor([1.0, torch.nan])
    save("a", same=same, nan=nan, value=torch.zeros(3), type=torch.ones(2), shape=torch.zeros(2), gone=same)
    save("b", same=same, nan=nan, value=torch.tensor([0, 0.5, -2]), type=torch.ones(2).half(), shape=torch.zeros(3))
    done = run("diff", "a", "b", "--json")
    assert done.status == 1
    assert {row.pop("tensor"): tuple(row.values()) for row in json.loads(done.out)} == {
        "model.gone": ("only in the first", None, None),
        "model.shape": ("[2] and [3]", None, None),
        "model.type": ("float32 and float16", 0, 0.0),
        "model.value": ("values", 2, 2.0),
    }
    assert "4 of 6 tensors differ" in run("diff", "a", "b").out
    done = run("diff", "a", "a")
    assert done.status == 0 and "all 6 tensors are equal" in done.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("show", "text.pt"), "error[E0530]: `text.pt` is a file, not a folder"),
        (("show", "none"), "error[E0530]: there is no folder `none`"),
        (("show", "."), "error[E0530]: `.` holds no checkpoint"),
        (("diff", "none", "none"), "error[E0530]"),
        (("to-torch", "none", "x.pt"), "error[E0530]"),
        (("from-torch", "none.pt", "a"), "error[E0531]: cannot read weights from `none.pt`: there is no such file"),
        (("from-torch", "text.pt", "a"), "error[E0531]"),
        (("from-torch", "list.pt", "a"), "error[E0531]: cannot read weights from `list.pt`: it holds no tensors"),
        (("from-torch", "numbers.pt", "a"), "error[E0532]"),
        (("from-safetensors", "none", "a"), "error[E0531]"),
        (("from-safetensors", "text.pt", "a"), "error[E0531]"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_mistakes(run: Run, tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    (tmp_path / "text.pt").write_text("no weights")
    torch.save([torch.ones(1)], tmp_path / "list.pt")
    net, _ = trained(0)
    numbered = torch.optim.AdamW([net.one.weight]).state_dict()
    torch.save({"model": net.state_dict(), "optim": numbered}, tmp_path / "numbers.pt")
    done = run(*words)
    assert done.status == 1 and said in done.err and "help: " in done.err
    assert not (tmp_path / "a").exists()
