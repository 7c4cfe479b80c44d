"""`--find-nan` as processes: the error of a run names what made the first number that is not finite."""

import textwrap
from pathlib import Path

from tests.cli.commands import call

NET = """
import torch
from torch.nn import functional as F

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.head = torch.nn.Linear(4, 8), torch.nn.Linear(8, 4)

    def forward(self, x, y):
        h = self.first(x)
        return F.cross_entropy(self.head(torch.log(h.abs() + 1) / x[:, :1]), y)

def net():
    torch.manual_seed(0)
    batch = {"x": torch.ones(8, 4), "y": torch.zeros(8, dtype=torch.int64)}
    return Net(), batch, {"x": ("batch", "width"), "y": ("batch",)}

def data():
    for step in range(4):
        x = torch.ones(8, 4)
        if step == 2:
            x[5] = 0.0
        yield {"x": x, "y": torch.zeros(8, dtype=torch.int64)}
"""
PLAN = """
mesh gpus(pp = 2)
split model by batch into m = 2
let stage = balance(model, 2)
assign stage[s] to gpus[pp = s] for s in 0..2
"""


def test_the_operator_is_named_with_its_rank_and_micro_batch(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(textwrap.dedent(NET))
    (tmp_path / "p.ssp").write_text(PLAN)
    words = ["run", "p.ssp", "--model", "net.py:net", "--data", "net.py:data", "--steps", "4"]
    found = call(*words, "--find-nan", folder=tmp_path)
    assert found.returncode == 1
    assert "the run ended: the loss of step 2 is nan; nothing was updated" in found.stderr
    assert "`div` in the model (net.py:12; p.ssp:3: split model by batch into m = 2) made the first " in found.stderr
    assert "in forward, at m = 1, on rank " in found.stderr
