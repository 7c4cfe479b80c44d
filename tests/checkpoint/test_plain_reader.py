"""torch reads a checkpoint without ssdsl: with `dcp.load` into a model's own state, and as one file."""

import os
import subprocess
from pathlib import Path

import torch

from ssdsl.runtime.checkpoints.reader import Checkpoint
from ssdsl.runtime.checkpoints.saver import Saver
from tests.checkpoint import parts
from tests.checkpoint.conftest import together

READ = """
import sys
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

folder, file = sys.argv[1:]
state = {
    "model": {
        "rows": torch.zeros(12, 3),
        "also_rows": torch.zeros(12, 3),
        "strided": torch.zeros(2, 36, dtype=torch.float64),
        "flat": torch.zeros(3, 5, dtype=torch.bfloat16),
        "count": torch.tensor(0),
        "empty": torch.zeros(0, 4),
    },
    "optim": {
        "state": {
            "rows": {"exp_avg": torch.zeros(12, 3), "step": torch.tensor(0.0)},
            "flat": {"exp_avg": torch.zeros(3, 5, dtype=torch.bfloat16), "step": torch.tensor(0.0)},
        }
    },
}
dcp.load(state, checkpoint_id=folder)
torch.save(state, file + ".loaded")
dcp_to_torch_save(folder, file)
assert not any(name.split(".")[0] == "ssdsl" for name in sys.modules)
"""


def test_torch_reads_it(tmp_path: Path, python: str) -> None:
    together(3, lambda control: Saver(control).save(tmp_path, 4, parts.content(4, control.rank, 3), wait=True))
    folder = Checkpoint.open(tmp_path).folder
    command = [python, "-c", READ, str(folder), str(tmp_path / "file.pt")]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    for name in ("file.pt", "file.pt.loaded"):
        found = torch.load(tmp_path / name, weights_only=True)

        def read(path: tuple[str, ...], found: object = found) -> torch.Tensor:
            for key in path:
                found = found[key]  # type: ignore[index]
            assert isinstance(found, torch.Tensor)
            return found

        parts.check(read, 4)
