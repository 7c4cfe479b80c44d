"""A case: a small model, by its parts and its forward, and a plan for it.

@case(x="batch 8, feature 4", y="batch 8 < 2")
@module(first=nn.Linear(4, 4), head=nn.Linear(4, 2))
def two_products(net: Any, x: Tensor, y: Tensor) -> Tensor:
    '''Two linear layers.

    mesh gpus(dp = 2)
    split model by batch into dp
    assign model to gpus
    '''
    return F.cross_entropy(net.head(net.first(x)), y)
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from inspect import cleandoc
from typing import Any

import torch
from torch import Tensor, nn

from bench.fuzz.models import Recipe
from ssdsl.cluster.cluster import Cluster


@dataclass(frozen=True)
class Case:
    """A plan that is equal to one device on a model, or refused with a code. Called, a module is a model of a user's
    file: the module, its inputs, and the names of their axes."""

    model: Recipe | nn.Module | str
    plan: str
    optimizer: str = "sgd"
    cluster: Cluster | None = None
    refused: str | None = None
    inputs: dict[str, str] = field(default_factory=dict)

    def __call__(self) -> tuple[nn.Module, dict[str, Tensor], dict[str, tuple[str, ...]]]:
        assert isinstance(self.model, nn.Module)
        torch.manual_seed(0)
        axes = {name: tuple(axis.split()[0] for axis in text.split(", ")) for name, text in self.inputs.items()}
        return self.model, {name: tensor(text) for name, text in self.inputs.items()}, axes


def case(
    *, optimizer: str = "sgd", cluster: Cluster | None = None, refused: str | None = None, **inputs: str
) -> Callable[[nn.Module], Case]:
    """A module whose docstring has a plan behind an empty line, with its inputs: `batch 8, seq 4` or `batch 8 < 5`."""
    return lambda net: Case(
        net, cleandoc(net.__doc__ or "").partition("\n\n")[2] + "\n", optimizer, cluster, refused, inputs
    )


def tensor(text: str) -> Tensor:
    """An input: numbers around zero, or whole numbers below one that stands behind `<`.

    >>> tensor("batch 2, seq 3").shape, tensor("batch 4 < 1")
    (torch.Size([2, 3]), tensor([0, 0, 0, 0]))
    """
    axes, _, below = text.partition(" < ")
    shape = [int(axis.split()[1]) for axis in axes.split(", ")]
    return torch.randint(int(below), shape) if below else torch.randn(shape, dtype=torch.float64)


def module(**parts: nn.Module | Tensor) -> Callable[[Callable[..., Tensor]], nn.Module]:
    """A forward becomes a module in double precision, which has these modules, weights and buffers."""

    def made(forward: Callable[..., Tensor]) -> nn.Module:
        net: Any = type(forward.__name__, (nn.Module,), {"forward": forward, "__doc__": forward.__doc__})()
        for name, part in parts.items():
            if isinstance(part, nn.Module | nn.Parameter):
                setattr(net, name, part)
            else:
                net.register_buffer(name, part)
        return net.double()

    return made
