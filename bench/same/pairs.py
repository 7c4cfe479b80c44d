"""Which plans are compared for which models: those that the tests compile, from the tests' own lists."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.same.checkouts import ROOT


@dataclass(frozen=True, slots=True)
class Pair:
    """A plan's file and a model, as the command line has them, and the plan's settings."""

    plan: Path
    model: str
    settings: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        where = self.plan.relative_to(ROOT) if self.plan.is_relative_to(ROOT) else self.plan
        model = Path(self.model).name if ".py:" in self.model else self.model
        return " ".join([str(where.with_suffix("")), model, *(f"{name}={value}" for name, value in self.settings)])

    @property
    def arguments(self) -> list[str]:
        """Behind a command."""
        settings = (word for name, value in self.settings for word in ("--set", f"{name}={value}"))
        return [str(self.plan), "--model", self.model, *settings]


def pairs(folder: Path, texts: bool) -> tuple[Pair, ...]:
    """All of them; with `texts` also the plans that are written in tests, as files in the folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "bench.same.recorded", str(folder), *(["--texts"] if texts else [])]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return tuple(Pair(Path(one["plan"]), one["model"], tuple(one["settings"].items())) for one in found)
