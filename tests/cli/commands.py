"""A call of every command that is right, with the model and the plan of the README; a command run in this process."""

import io
import re
import sys
from collections.abc import Iterator
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.main import get_command

from ssdsl.cli.app import app
from ssdsl.cli.main import main

ROOT = Path(__file__).parent.parent.parent
OWN = "--model mymodel.py:net"

# by the words that name the command; later ones read what earlier ones wrote, and `profile` finds all that it needs
CALLS = {
    "run": f"run data_parallel {OWN} --steps 4 --save runs --profile times.json",
    "verify": f"verify mine.ssp {OWN}",
    "check": f"check mine.ssp {OWN} --cluster v100x32",
    "prove": f"prove mine.ssp {OWN}",
    "show": f"show mine.ssp {OWN}",
    "simulate": f"simulate data_parallel {OWN} --costs times.json --html step.html --trace step.json",
    "profile": f"profile data_parallel {OWN} --out times.json",
    "diff": f"diff data_parallel mine.ssp {OWN}",
    "reshard": f"reshard mine.ssp mine.ssp {OWN}",
    "sweep": f"sweep data_parallel {OWN} --set D=2,4 --html sweep.html",
    "search": f"search data_parallel {OWN} --devices 1..4 --html search.html --out found.ssp",
    "matrix": f"matrix mine.ssp {OWN} --verify",
    "new": f"new {OWN.partition(' ')[2]}",
    "repl": f"repl mine.ssp {OWN}",
    "compile": f"compile mine.ssp {OWN} --meta --out program",
    "export": f"export pipeline {OWN} --csv --out order.csv",
    "capture": f"capture {OWN.partition(' ')[2]} --out net.graph",
    "discover": f"discover {OWN}",
    "import": "import 'pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4' --out imported.ssp",
    "cache": "cache",
    "models": "models",
    "plans": "plans",
    "ops": "ops softmax",
    "explain": "explain E0203",
    "fmt": "fmt mine.ssp",
    "lsp": "lsp",
    "clusters": "clusters",
    "clusters show": "clusters show laptop",
    "clusters measure": "clusters measure --out measured.toml",
    "checkpoint show": "checkpoint show runs",
    "checkpoint diff": "checkpoint diff runs runs",
    "checkpoint to-torch": "checkpoint to-torch runs net.pt --optim",
    "checkpoint from-torch": "checkpoint from-torch net.pt from_torch",
    "checkpoint to-safetensors": "checkpoint to-safetensors runs net.safetensors",
    "checkpoint from-safetensors": "checkpoint from-safetensors net.safetensors from_safetensors",
}


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


def call(*words: str, folder: Path, **environment: str) -> Done:
    """Runs a command in this process, where torch is loaded already."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, chdir(folder), redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["ssdsl", *words])
        patch.setattr(sys, "path", sys.path.copy())  # as each command has it, whatever others have added
        for name, value in environment.items():
            patch.setenv(name, value)
        with pytest.raises(SystemExit) as ended:
            main()
    return Done(int(ended.value.code or 0), out.getvalue(), err.getvalue())


def commands() -> Iterator[tuple[str, object]]:
    """Every command of the app, by the words that name it."""

    def within(name: str, command: object) -> Iterator[tuple[str, object]]:
        inner = getattr(command, "commands", {})
        if name and (not inner or getattr(command, "invoke_without_command", False)):
            yield name, command
        for word, one in inner.items():
            yield from within(f"{name} {word}".strip(), one)

    return within("", get_command(app))


def write_readme(folder: Path) -> None:
    """The README's model and its plan, as files."""
    text = (ROOT / "README.md").read_text("utf-8")
    blocks = re.findall(r"^```(?:python|ssp)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (folder / "mymodel.py").write_text(next(b for b in blocks if "nn.Module" in b))
    (folder / "mine.ssp").write_text(next(b for b in blocks if "assign model to gpus" in b and "ffn" in b))
