"""How long commands take from their start to their end: with the graph kept from an earlier command, and without.

    python -m bench start [--rounds 3] [--large]

Each is a process of its own, in a cache of its own. `torch`, `transformers` are the imports alone, which a command that
captures cannot do without. `--large` captures GPT-3, too.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parent.parent
MODEL = """\
import json
from pathlib import Path

import torch
from torch import nn

WIDTH = json.loads((Path(__file__).parent / "width.json").read_text())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(8, WIDTH), nn.Linear(WIDTH, 8)

    def forward(self, x):
        return (self.two(torch.relu(self.one(x))) ** 2).mean()


def net():
    return Net(), {"x": torch.randn(4, 8)}, {"x": ("batch", "feature")}
"""
IMPORTS = {"import torch": "import torch", "import torch, transformers": "import torch, transformers.modeling_utils"}
COMMANDS = {
    "--help": "--help",
    "check, a model of the zoo": "check megatron --model gpt",
    "prove, another plan": "prove pipeline --model gpt",
    "show dims": "show megatron --model gpt dims",
    "check, a user's file that reads a config": "check data_parallel --model mine.py:net",
    "repl, first :simulate": "repl megatron --model gpt",
    "verify on 2 processes, 0.9 million weights": "verify data_parallel --model gpt --set D=2",
}
LARGE = {"check of GPT-3": "check megatron --model gpt:175b --set D=8 --set T=8 --set S=16 --set M=64"}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench start")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--large", action="store_true", help="GPT-3, too")
    options = parser.parse_args(arguments)
    table = Table("command", "first s", "again s")
    for name, code in IMPORTS.items():
        seconds = [_seconds([sys.executable, "-c", code], ROOT) for _ in range(options.rounds)]
        table.add_row(name, f"{median(seconds):.2f}")
    for name, words in (COMMANDS | (LARGE if options.large else {})).items():
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "mine.py").write_text(MODEL)
            (Path(folder) / "width.json").write_text("16")
            command = [sys.executable, "-m", "ssdsl", *words.split()]
            first, *again = (_seconds(command, Path(folder)) for _ in range(1 + options.rounds))
        table.add_row(name, f"{first:.2f}", f"{median(again):.2f}")
    Console().print(table)
    return 0


def _seconds(command: list[str], folder: Path) -> float:
    """Of a command that finds what the one before it has kept in the folder. Raises CalledProcessError."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder / "cache")}
    start = time.perf_counter()
    subprocess.run(command, cwd=folder, env=env, input=b":simulate\n", capture_output=True, check=True)
    return time.perf_counter() - start
