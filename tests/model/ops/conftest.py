"""A package outside of ssdsl, written into a folder: operators of its own, their gradients and their rows."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

NAME = "ssdsl_test_lib"

OPERATORS = '''
"""Operators that torch learns by torch.library, and the kernel of a part."""

import torch
import torch.distributed as dist


@torch.library.custom_op("ssdsl_test_lib::relu", mutates_args=())
def relu(x: torch.Tensor) -> torch.Tensor:
    """Not what torch.relu is: -x."""
    return -x


@torch.library.custom_op("ssdsl_test_lib::project", mutates_args=())
def project(x: torch.Tensor, weight: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    return scale * (x @ weight)


@torch.library.custom_op("ssdsl_test_lib::centre", mutates_args=())
def centre(x: torch.Tensor) -> torch.Tensor:
    return x - x.mean(0)


@torch.library.custom_op("ssdsl_test_lib::unknown", mutates_args=())
def unknown(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


relu.register_fake(torch.empty_like)
centre.register_fake(torch.empty_like)
unknown.register_fake(torch.empty_like)
project.register_fake(lambda x, weight, scale=1.0: x @ weight)
relu.register_autograd(lambda ctx, g: -g)
centre.register_autograd(lambda ctx, g: g - g.mean(0))
unknown.register_autograd(lambda ctx, g: g)


def keep(ctx, inputs, output):
    x, weight, ctx.scale = inputs
    ctx.save_for_backward(x, weight)


def gradients(ctx, g):
    x, weight = ctx.saved_tensors
    return ctx.scale * (g @ weight.T), ctx.scale * (x.flatten(0, -2).T @ g.flatten(0, -2)), None


project.register_autograd(gradients, setup_context=keep)


class _Mean(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group, ctx.rows = group, x.shape[0] * group.size
        return _summed(x.sum(0), group) / ctx.rows

    @staticmethod
    def backward(ctx, g):
        return (_summed(g.clone(), ctx.group) / ctx.rows).expand(ctx.rows // ctx.group.size, *g.shape), None


def _summed(x, group):
    dist.all_reduce(x, op=dist.ReduceOp.SUM, group=group.process_group)
    return x


def centre_part(x, group):
    """Of a batch whose rows are split over the group: the mean is that of all rows."""
    return x - _Mean.apply(x, group)
'''

ROWS = """
import ssdsl

CENTRE_PART = ssdsl.PartKernel(
    axis=("x", 0),
    call="ssdsl_test_lib.centre_part({x}, {group})",
    forward=(ssdsl.Collective(1),),
    backward=(ssdsl.Collective(1),),
    saved="",
)

OPS = [
    ssdsl.Op("ssdsl_test_lib::relu", "... -> ...", linear_in=("x",), module="ssdsl_test_lib"),
    ssdsl.Op("ssdsl_test_lib::project", "... in, in out -> ... out", contraction=True, module="ssdsl_test_lib"),
    ssdsl.Op("ssdsl_test_lib::centre", "rows* n -> rows* n", kernel=CENTRE_PART, module="ssdsl_test_lib"),
]
"""

MODEL = """
import ssdsl_test_lib
import torch
from ssdsl_test_rows import OPS
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 8)
        self.weight = nn.Parameter(torch.randn(8, 4) / 4)

    def forward(self, x):
        ops = torch.ops.ssdsl_test_lib
        return ops.centre(ops.project(ops.relu(self.fc(x)), self.weight, scale=0.5)).square().mean()


def net():
    x = torch.randn(12, 6, generator=torch.Generator().manual_seed(0))
    return Net(), {"x": x}, {"x": ("batch", "feature")}


def unknown():
    class Unknown(Net):
        def forward(self, x):
            return torch.ops.ssdsl_test_lib.unknown(self.fc(x)).sum()

    return Unknown(), *net()[1:]
"""


def write_package(folder: Path) -> None:
    """The operators, their rows, and a model that uses both."""
    (folder / f"{NAME}.py").write_text(OPERATORS)
    (folder / "ssdsl_test_rows.py").write_text(ROWS)
    (folder / "model.py").write_text(MODEL)


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the package, which can be imported; torch learns its operators once for the whole process."""
    folder = tmp_path_factory.mktemp("package")
    write_package(folder)
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))


@pytest.fixture(scope="session")
def library(package: Path) -> ModuleType:
    return importlib.import_module(NAME)
