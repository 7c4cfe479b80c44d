"""Two training steps of a compiled folder, in processes that are forked from one that has loaded torch."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.same.checkouts import ROOT
from bench.same.compare import equal_to_the_bit

STARTER = ROOT / "tests" / "verify" / "ranks.py"  # which imports nothing of any checkout: a folder has its own runtime
TRAINING = ("--steps", "2", "--optimizer", "sgd", "--lr", "0.1", "--allow-nan", "--dump")


@dataclass(frozen=True, slots=True)
class Starter:
    """The process that starts the ranks."""

    process: "subprocess.Popen[str]"

    def train(self, folder: Path, out: Path) -> bool:
        """Whether all ranks of a program ended well; `out` receives what they dump."""
        out.mkdir(parents=True)
        processes = json.loads((folder / "program.json").read_text())["world_size"]
        request = {"arguments": [str(folder / "main.py"), *TRAINING, "--out", str(out)], "processes": processes}
        assert self.process.stdin and self.process.stdout
        print(json.dumps(request), file=self.process.stdin, flush=True)
        return self.process.stdout.readline().strip() == "0"


@contextlib.contextmanager
def starter(log: Path) -> Iterator[Starter]:
    with log.open("a") as errors:
        process = subprocess.Popen(
            [sys.executable, str(STARTER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
        try:
            yield Starter(process)
        finally:
            process.kill()
            process.wait()


def same_steps(old: Path, new: Path) -> bool:
    """Whether two runs dumped the same losses, gradients, weights and buffers, to the bit."""
    import torch

    ranks = [sorted(path.name for path in out.glob("rank*.pt")) for out in (old, new)]
    if not ranks[0] or ranks[0] != ranks[1]:
        return False
    for name in ranks[0]:
        losses = [json.loads((out / name).with_suffix(".json").read_text())["losses"] for out in (old, new)]
        dumps = [torch.load(out / name) for out in (old, new)]
        if not equal_to_the_bit(*losses) or not equal_to_the_bit(*dumps):
            return False
    return True
