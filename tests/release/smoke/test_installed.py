"""What a user has who installs the wheel beside torch, and nothing else."""

import importlib.util
import json
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

import ssdsl as package

Ssdsl = Callable[..., "subprocess.CompletedProcess[str]"]
INSTALLED = Path(sysconfig.get_path("purelib")) / "ssdsl"
PLANS = sorted(path.stem for path in (INSTALLED / "_assets" / "examples").glob("*.ssp"))
MODEL = "moe_gpt"  # which needs torch alone
PLAN = """\
param D = 2
mesh gpus(dp = D)
split model by batch into dp
assign model to gpus
"""
NET = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 2))

    def forward(self, x, y):
        return nn.functional.mse_loss(self.layers(x), y)


def net():
    return Net(), (torch.randn(8, 6), torch.randn(8, 2))
"""


def test_it_is_the_installed_package() -> None:
    assert package.__file__ is not None and Path(package.__file__).parent == INSTALLED
    assert not [name for name in ("transformers", "pygls", "hypothesis") if importlib.util.find_spec(name) is not None]


def test_version(ssdsl: Ssdsl) -> None:
    assert ssdsl("--version").stdout == f"ssdsl {package.__version__}\n"
    assert package.__version__ == version("ssdsl")


def test_lists(ssdsl: Ssdsl) -> None:
    plans = json.loads(ssdsl("plans --json").stdout)
    assert PLANS and {*PLANS} <= {plan["plan"] for plan in plans["plans"]}
    assert any("one_f_one_b" in str(file["functions"]) for file in plans["library"])
    assert {"gpt:tiny", "moe_gpt:tiny", "vgg:tiny"} <= {
        row["model"] for row in json.loads(ssdsl("models --json").stdout)
    }
    assert "is impossible" in ssdsl("explain E0203").stdout


@pytest.mark.parametrize("plan", ["data_parallel", "tensor_parallel", "megatron", "zero", "experts", "interleaved"])
def test_prove(ssdsl: Ssdsl, plan: str) -> None:
    assert "proved in" in ssdsl(f"prove {plan} --model {MODEL}").stdout


@pytest.mark.parametrize("view", ["dims", "ops", "tasks", "comm", "program", "schedule", "memory"])
def test_show(ssdsl: Ssdsl, view: str) -> None:
    assert ssdsl(f"show zero_bubble {view} --model {MODEL}").stdout.strip()


def test_check_and_simulate(ssdsl: Ssdsl) -> None:
    assert "free of deadlock" in ssdsl(f"check megatron --model {MODEL}").stdout
    step = json.loads(ssdsl(f"simulate megatron --model {MODEL} --cluster a100x8 --json").stdout)
    assert step["step_s"] > 0 and step["fits"] and len(step["devices"]) == 2


def test_a_mistake_has_a_code_and_a_place(ssdsl: Ssdsl) -> None:
    wrong = ssdsl(f"check megatron --model {MODEL} --set M=3", status=1).stderr
    assert "error[E0203]" in wrong and "megatron.ssp:" in wrong and "help:" in wrong


def test_run_and_verify_on_two_processes(ssdsl: Ssdsl, tmp_path: Path) -> None:
    """A model and a plan of the user's own."""
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "own.ssp").write_text(PLAN)
    ranks = json.loads(ssdsl("run own.ssp --model net.py:net --steps 3 --save runs/a --json").stdout)
    assert [rank["rank"] for rank in ranks] == [0, 1] and all(len(rank["losses"]) == 3 for rank in ranks)
    assert "layers.0.weight" in ssdsl("checkpoint show runs/a").stdout
    assert "on 2 devices and on one" in ssdsl("verify own.ssp --model net.py:net").stdout


def test_a_compiled_program_runs_by_itself(ssdsl: Ssdsl, tmp_path: Path) -> None:
    """torch starts it, and its ranks import nothing of ssdsl."""
    (tmp_path / "net.py").write_text(NET)
    ssdsl(f"compile data_parallel --model net.py:net -o {tmp_path / 'made'}")
    (tmp_path / "alone.py").write_text(
        "import runpy, sys\nsys.modules['ssdsl'] = None\nrunpy.run_path('made/main.py', run_name='__main__')\n"
    )
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run([*torchrun, "alone.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "loss" in done.stdout


def test_repl(ssdsl: Ssdsl) -> None:
    lines = "mesh gpus(dp = 2)\nsplit model by batch into dp\nassign model to gpus\n:comm\n"
    assert "into 2 parts, dp" in ssdsl(f"repl --model {MODEL}", given=lines).stdout


def test_format(ssdsl: Ssdsl, tmp_path: Path) -> None:
    (tmp_path / "own.ssp").write_text(PLAN.replace(" = ", "="))
    ssdsl("fmt --check own.ssp", status=1)
    ssdsl("fmt own.ssp")
    assert (tmp_path / "own.ssp").read_text() == PLAN


def test_what_is_not_installed_is_named(ssdsl: Ssdsl) -> None:
    wrong = ssdsl("check data_parallel --model hf:llama", status=1).stderr
    assert "needs the `transformers` library" in wrong and "pip install 'ssdsl[models]'" in wrong
    assert "pip install 'ssdsl[lsp]'" in ssdsl("lsp", status=2).stderr
