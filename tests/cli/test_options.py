"""Every option of every command is used: another value of it is refused, or it changes what the command does.

The commands and their options are asked of the app, so that a new option is asked for a value here. What a command does
is what it prints, what it writes, what it loads, and what it would start: no process is started.
"""

import io
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
import torch
from safetensors.torch import save_file

import ssdsl.cluster.measure as measure
import ssdsl.model.evaluation as evaluation
import ssdsl.model.load as loading
import ssdsl.model.module_to_graph as trace
import ssdsl.run.launch as launching
from ssdsl.cli.commands.show import ViewName
from ssdsl.cli.main import main
from ssdsl.cli.terminal import show_diagnostics
from ssdsl.cluster.measure import Measurement
from ssdsl.model.cache import entries
from ssdsl.model.graph import Graph
from ssdsl.model.load.model import Model
from ssdsl.run.checkpoints.convert import from_torch
from ssdsl.run.errors import LossNotFinite
from tests.cli.commands import OWN, commands

PLAN = """\
param T = 2 "parts"
param M = 2 "micro-batches"
mesh gpus(dp = T, tp = 2)
split model by batch into dp, m = M
split model by ffn into tp
assign model to gpus
"""
MODEL = """\
import torch
from torch import nn

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return (x ** 2).mean()

def net():
    return Net(), {"x": torch.randn(64, 32)}, {"x": ("batch", "feature")}
"""
DATA = """\
import torch

def data():
    return torch.utils.data.TensorDataset(torch.randn(64, 32))
"""
STAGES = """\
mesh gpus(pp = 2, tp = 4)
let first = model["layers.0"]
split model by ffn into tp
assign first to gpus[pp = 0]
assign model - first to gpus[pp = 1]
"""
HOSTS = """\
about = "hosts of four, 10 Gb/s between them"

[devices.v100]
name = "V100 16 GB"
peak_tflops = { float32 = 15.7 }
memory_gib = 15.7
memory_bandwidth_gb_s = 900
compute_efficiency = 0.66
memory_efficiency = 0.72
launch_us = 5
source = "V100 datasheet"

[[nodes]]
device = "v100"
count = 2
devices = 4

[[nodes.levels]]
name = "host"
bandwidth_gb_s = 40
latency_us = 0
source = "assumed"

[[nodes.levels]]
name = "ethernet"
bandwidth_gb_s = 0.3125
alone_bandwidth_gb_s = 1.25
latency_us = 0
source = "10 Gb/s of a host, shared by 4"
"""
HALF = f"{OWN} --precision bf16"

# what a command of each name is called with; a view is a command of its own
CALLS = {
    "run": f"run p.ssp {OWN} --out kept --eval-data data.py:data",
    "verify": f"verify p.ssp {OWN}",
    "check": f"check p.ssp {OWN}",
    "prove": f"prove p.ssp {OWN}",
    **{f"show {view}": f"show p.ssp {view} {HALF}" for view in ViewName},
    "show tasks": f"show p.ssp tasks {HALF} --set M=32",  # an order of which the middle is left out
    "compile": f"compile p.ssp {OWN} --out program",
    "export": f"export pipeline {OWN} --csv",
    "repl": f"repl p.ssp {OWN}",
    "simulate": f"simulate p.ssp {HALF}",
    "profile": f"profile p.ssp {OWN} --out new.json",
    "diff": f"diff p.ssp data_parallel {HALF}",
    "reshard": f"reshard p.ssp zero {HALF} --set D=4",
    "sweep": f"sweep p.ssp {HALF} --set T=2,4",
    "search": f"search p.ssp {HALF} --devices 2..4",
    "matrix": f"matrix p.ssp {OWN}",
    "new": "new mymodel.py:net --out new.ssp",
    "capture": "capture mymodel.py:net --out net.graph",
    "discover": f"discover {OWN}",
    "import": "import ds.json",
    "cache": "cache",
    "models": "models",
    "plans": "plans --for mymodel.py:net --devices 2",
    "ops": "ops softmax",
    "explain": "explain",
    "fmt": "fmt untidy.ssp",
    "clusters": "clusters",
    "clusters show": "clusters show laptop",
    "clusters measure": "clusters measure --out measured.toml",
    "checkpoint show": "checkpoint show runs",
    "checkpoint diff": "checkpoint diff runs runs",
    "checkpoint to-torch": "checkpoint to-torch runs made.pt",
    "checkpoint from-torch": "checkpoint from-torch net.pt made",
    "checkpoint to-safetensors": "checkpoint to-safetensors runs made",
    "checkpoint from-safetensors": "checkpoint from-safetensors net.safetensors made",
}

# another value of each option, good enough to be taken; what names nothing has to be refused
VALUES = {
    "--model": "--model nowhere.py:net",
    "--set": "--set M=4",
    "--and": "--and T=4",
    "--cluster": "--cluster nowhere.toml",
    "--baseline": "--baseline data_parallel",
    "--devices": "--devices 8",
    "--memory": "--memory 0.000001",
    "--by": "--by cost --cluster a100x8",
    "--top": "--top 1",
    "--explain": "--explain 1",
    "--tries": "--tries 1",
    "--seconds": "--seconds 0.001",
    "--compile": "--compile elsewhere",
    "--orders": "--no-orders",
    "--costs": "--costs nowhere.json",
    "--against": "--against nowhere.pt",
    "--data": "--data nowhere.py:data",
    "--eval-data": "--eval-data nowhere.py:data",
    "--eval-every": "--eval-every 2",
    "--steps": "--steps 7",
    "--seed": "--seed 7",
    "--generator": "--generator philox",
    "--meta": "--meta",
    "--no-cache": "--no-cache",
    "--clear": "--clear",
    "--device": "--device cuda",
    "--backend": "--backend nccl",
    "--optimizer": "--optimizer adamw",
    "--lr": "--lr 0.5",
    "--clip": "--clip 0.5",
    "--accumulate": "--accumulate 2",
    "--precision": "--precision fp16",
    "--kernels": "--kernels compiled",
    "--master-weights": "--no-master-weights",
    "--fp32-grads": "--fp32-grads",
    "--save": "--save elsewhere",
    "--save-every": "--save-every 2",
    "--keep": "--keep 2",
    "--resume": "--resume elsewhere",
    "--allow-nan": "--allow-nan",
    "--find-nan": "--find-nan",
    "--blocking": "--blocking",
    "--link": "--link bandwidth=1Gb/s",
    "--processes": "--processes 1",
    "--timeout": "--timeout 5",
    "--nnodes": "--nnodes 2",
    "--node-rank": "--node-rank 1",
    "--rdzv-endpoint": "--rdzv-endpoint nowhere",
    "--nproc-per-node": "--nproc-per-node 3",
    "--max-restarts": "--max-restarts 2",
    "--out": "--out elsewhere",
    "--profile": "--profile made.json",
    "--trace": "--trace made.json",
    "--html": "--html made.html",
    "--json": "--json",
    "--all": "--all",
    "--window": "--window 0..0.01",
    "--transfers": "--transfers",
    "--role": "--role nobody",
    "--lock": "--lock",
    "--lock-file": "--lock-file nowhere/p.comm",
    "--output": "--output nothing",
    "--print-after": "--print-after nothing",
    "--check": "--check",
    "--fix": "--fix",
    "--yes": "--yes",
    "--optim": "--optim",
    "--tp-plan": "--tp-plan",
    "--shard-size": "--shard-size 0.001",
    "--csv": "--csv",
    "--from": "--from deepspeed",
    "--for": "--for nowhere.py:net",
    "--force": "--force --out untidy.ssp",
    "--verify": "--verify",
}
OTHERWISE = {  # where that is what the call says already, or needs more beside it
    ("run", "--optimizer"): "--optimizer sgd",
    ("profile", "--optimizer"): "--optimizer sgd",
    ("profile", "--out"): "--out data.py",  # no profile
    ("diff", "--and"): "--and D=4",
    ("reshard", "--and"): "--and Z=1",
    ("reshard", "--set"): "--set Z=2",
    ("reshard", "--state-tensors"): "--state-tensors 1",
    ("sweep", "--set"): "--set T=8",
    ("search", "--out"): "--out found.ssp",
    ("export", "--set"): "--set M=2",
}
AS_IT_IS = {  # and these change nothing: dimensions are the model's
    ("show dims", "--set"),
    ("show graph", "--set"),
    ("search", "--orders"),  # of a plan without a pipeline
    ("check", "--fix"),  # of a plan without mistakes
    ("import", "--from"),  # which stands in the source, too
    ("export", "--csv"),  # one form has to be said
    ("matrix", "--kernels"),  # where nothing is trained, the same is proved
}
AT = date(2026, 1, 1)
MEASURED = Measurement("a processor", 2, 1 << 33, 1e11, 1e11, 1e10, 1e-6, 1e-5, 1e9, 1e-5, 1e9, 0.0, "2", AT)


@dataclass(frozen=True)
class Done:
    """How a command ended, and all that it did."""

    status: int
    did: str
    err: str


Call = Callable[[str], Done]


def option_names() -> Iterator[tuple[str, str]]:
    """Every call, with each option of its command."""
    known = dict(commands())
    for name in CALLS:
        command: Any = known.get(name) or known[name.partition(" ")[0]]
        yield from ((name, p.opts[0]) for p in command.params if p.opts[0].startswith("--"))


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the calls read."""
    folder = tmp_path_factory.mktemp("start")
    (folder / "mymodel.py").write_text(MODEL)
    (folder / "p.ssp").write_text(PLAN)
    (folder / "untidy.ssp").write_text("let  x=1\n")
    (folder / "data.py").write_text(DATA)
    (folder / "ds.json").write_text('{"zero_optimization": {"stage": 2}}')
    return folder


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the checkpoints that calls of `checkpoint` read."""
    folder = tmp_path_factory.mktemp("saved")
    net = torch.nn.Linear(1024, 512)  # of more than a megabyte
    optimizer = torch.optim.AdamW(net.named_parameters())
    net(torch.ones(1, 1024)).sum().backward()
    optimizer.step()
    torch.save({"model": net.state_dict(), "optim": optimizer.state_dict()}, folder / "net.pt")
    save_file(net.state_dict(), folder / "net.safetensors")
    from_torch(folder / "net.pt", folder / "runs")
    return folder


@pytest.fixture(scope="module")
def called(start: Path, saved: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Call]:
    """Calls a command in a fresh copy of the folder; a call is carried out once."""
    here = tmp_path_factory.mktemp("calls") / "here"
    noted: list[str] = []
    capture, load = kept(trace.capture), loading.load

    def loaded(spec: str, **given: Any) -> Model:
        noted.append(f"load {spec} {given}")
        return load(spec, **given)

    def captured(model: Model) -> Graph:
        noted.append(f"capture {model.name} {model.precision} {model.evaluation} {model.is_meta}")
        return capture(noted[-1], model)

    def launched(folder: Path, *what: Any, **how: Any) -> None:
        noted.append(f"launch {what} { ({k: v for k, v in how.items() if k != 'console'}) } {_sums(folder)}")
        show_diagnostics([LossNotFinite(None, "nan", 0, 0.1)])
        raise SystemExit(0)

    @cache
    def call(words: str) -> Done:
        noted.clear()
        entries.clear()
        shutil.rmtree(here, ignore_errors=True)
        shutil.copytree(start, here)
        if words.startswith("checkpoint"):
            shutil.copytree(saved, here, dirs_exist_ok=True)
        out, err = io.StringIO(), io.StringIO()
        patch.setattr(sys, "argv", ["ssdsl", *words.split()])
        patch.setattr(sys, "stdin", io.StringIO(":simulate\n"))
        with chdir(here), redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
            main()
        noted.append(f"kept {len(entries.entries())} graphs")
        did = "\n".join([out.getvalue(), err.getvalue(), *noted, _sums(here)])
        return Done(int(ended.value.code or 0), re.sub(r"/[^ ']*/ssdsl-\w+", "TEMPORARY", did), err.getvalue())

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(here.parent / "cache"))  # whose graphs are counted, and removed
        patch.setattr(loading, "load", loaded)
        patch.setattr(trace, "capture", captured)
        patch.setattr(evaluation, "capture", captured)
        patch.setattr(launching, "launch", launched)
        patch.setattr(measure, "measure", lambda: MEASURED)
        yield call


def _sums(folder: Path) -> str:
    """The files of a folder, each with a sum of what it holds."""
    return str({str(p.relative_to(folder)): crc32(p.read_bytes()) for p in sorted(folder.rglob("*")) if p.is_file()})


def kept(capture: Callable[[Model], Graph]) -> Callable[[str, Model], Graph]:
    """Captures once for each key."""
    known: dict[str, Graph] = {}
    return lambda key, model: known.get(key) or known.setdefault(key, capture(model))


def test_every_command_is_called() -> None:
    assert {name for name, _ in commands()} <= {*CALLS, "show", "lsp"}  # which has no options, and serves until it ends


@pytest.mark.parametrize(("name", "option"), [*option_names()])
def test_every_option_is_used(called: Call, name: str, option: str) -> None:
    words = OTHERWISE.get((name, option)) or VALUES.get(option)
    assert words is not None, f"say a value of `{option}` that `{name}` would not have without it"
    plain, other = called(CALLS[name]), called(f"{CALLS[name]} {words}")
    assert plain.status == 0, plain.err
    assert other.status in (0, 1, 2), other.err
    assert other.status or other.did != plain.did or (name, option) in AS_IT_IS, f"{words} changes nothing"
    if "nowhere" in words:
        assert other.status and ("nowhere" in other.err or "changes nothing" in other.err)


@pytest.mark.parametrize("name", [name for name, option in option_names() if option == "--set"])
def test_a_param_that_the_plan_does_not_have_is_refused(called: Call, name: str) -> None:
    done = called(f"{CALLS[name]} --set Q=2")
    assert done.status and ("Q" in done.err or "changes nothing" in done.err)


def test_views_are_of_the_program_for_the_cluster(called: Call, start: Path) -> None:
    """Between hosts a tensor travels in shares that are gathered within them, where that is the fastest."""
    (start / "stages.ssp").write_text(STAGES)
    (start / "hosts.toml").write_text(HOSTS)
    for what in ("comm", "program"):
        plain, other = (called(f"show stages.ssp {what} {OWN} {more}") for more in ("", "--cluster hosts.toml"))
        assert (plain.status, other.status) == (0, 0), other.err
        assert "all_gather" not in plain.did and "all_gather" in other.did
