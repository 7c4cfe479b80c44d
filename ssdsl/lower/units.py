"""Units of weights: what is reduced together, and whose state is cut together."""

from dataclasses import dataclass
from typing import NamedTuple

from ssdsl.lower.layout import Submesh
from ssdsl.lower.schedule import Home, Role, Schedule
from ssdsl.model.graph import Origin
from ssdsl.model.layers import layer_of, layer_paths

BUCKET_BYTES = 25 << 20  # as PyTorch's DistributedDataParallel


@dataclass(frozen=True, slots=True)
class WeightUnit:
    """Homes on one submesh with equal treatment. `over`: the axes over which `cut` (a kind of state) is cut."""

    homes: tuple[Home, ...]
    partial: tuple[str, ...]
    cut: str
    over: tuple[str, ...]
    tied: bool


def units_of(schedule: Schedule, role: Role) -> tuple[WeightUnit, ...]:
    """The units of a role's weights, in the order in which backward completes their gradients (last layers first)."""
    layers = layer_paths(schedule.graph)
    counts: dict[str, int] = {}
    for home in schedule.homes:
        counts[home.weight] = counts.get(home.weight, 0) + 1
    groups: dict[_Kind, list[Home]] = {}
    for home in reversed([h for h in schedule.homes if role.is_in(h.submesh) and _learns(schedule, h)]):
        cut, over = _cut(home)
        tied = counts[home.weight] > 1
        where = (
            home.weight if tied else (layer_of(home.weight, layers) or _parent(home.weight)) if cut == "weights" else ""
        )
        dtype = schedule.graph.values[home.weight].dtype
        groups.setdefault(_Kind(home.submesh, home.partial, cut, over, tied, where, dtype), []).append(home)
    return tuple(
        WeightUnit(part, kind.partial, kind.cut, kind.over, kind.tied)
        for kind, homes in groups.items()
        for part in _buckets(schedule, homes)
    )


class _Kind(NamedTuple):
    """What the weights of a unit have in common. `where`: the module that a unit of gathered weights belongs to."""

    submesh: Submesh
    partial: tuple[str, ...]
    cut: str
    over: tuple[str, ...]
    tied: bool
    where: str
    dtype: str


def _learns(schedule: Schedule, home: Home) -> bool:
    value = schedule.graph.values[home.weight]
    return value.origin is Origin.WEIGHT and value.differentiable


def _cut(home: Home) -> tuple[str, tuple[str, ...]]:
    for kind, over in (("weights", home.weights_over), ("grads", home.grads_over), ("optimizer", home.optimizer_over)):
        if over:
            return kind, over
    return "", ()


def _parent(weight: str) -> str:
    return weight.rpartition(".")[0]


def _buckets(schedule: Schedule, homes: list[Home]) -> list[tuple[Home, ...]]:
    buckets: list[list[Home]] = [[]]
    size = 0
    for home in homes:
        if size > BUCKET_BYTES:
            buckets.append([])
            size = 0
        buckets[-1].append(home)
        local = home.shape.local(home.layout.digits()).numel
        size += local * schedule.graph.values[home.weight].itemsize
    return [tuple(b) for b in buckets]
