"""Gives each weight a home where the plan says `split OPS.optimizer by matrix into dp`: devices that step on all of it.

Optimizers such as Muon iterate on whole matrices. A weight whose elements lie on several devices, or which several have
alike, is stepped on at one coordinate along the plan's axes, and along those that cut it. The heaviest weights come
first, each to the coordinate with the least work so far: by the arithmetic of a matrix times its own transpose, which
is that of an iteration.
"""

import itertools
import math

from ssdsl.ir.layout import Shape, Submesh
from ssdsl.ir.param import FlatParam, Home, Param
from ssdsl.lower.stages import Formed
from ssdsl.record import replace

Coordinates = tuple[int, ...]  # along all axes of a submesh


def home_matrices(lowering: Formed) -> Formed:
    """Sets `homes` of flat parameters.

    Of two layers on two devices, with `split model.optimizer by matrix into dp`:

        -   layers.1.2.weight
        +   layers.1.2.weight whole at dp = 0
    """
    if not lowering.plan.state.matrices or lowering.held.flats:
        return lowering
    said = {(weight, axis) for shard in lowering.plan.state.matrices for weight in shard.weights for axis in shard.axes}
    stated = {weight for weight, _ in said}
    params = {(p.weight, p.submesh): p for p in lowering.params}
    axes: dict[tuple[str, Submesh], tuple[str, ...]] = {}
    for flat in lowering.flats:
        for weight in (w for w in flat.weights if w in stated):
            param = params[weight, flat.submesh]
            cut = {axis for axis, _ in flat.submesh.axes} - {*param.copied} | {*flat.sharded.optimizer}
            ways = (axis for axis, size in flat.submesh.axes if size > 1)
            axes[weight, flat.submesh] = tuple(axis for axis in ways if axis in cut or (weight, axis) in said)
    homes = _Given([params[key] for key, along in axes.items() if along], axes).homes
    return replace(lowering, flats=tuple(_with_homes(flat, homes) for flat in lowering.flats))


def _with_homes(flat: FlatParam, homes: dict[tuple[str, Submesh], Home]) -> FlatParam:
    found = tuple(homes.get((weight, flat.submesh)) for weight in flat.weights)
    return replace(flat, homes=found) if any(found) else flat


class _Given:
    """The homes of weights, by weight and submesh; `load` is the work of each device so far."""

    def __init__(self, params: list[Param], axes: dict[tuple[str, Submesh], tuple[str, ...]]) -> None:
        self.homes: dict[tuple[str, Submesh], Home] = {}
        self.load: dict[tuple[Submesh, Coordinates], int] = {}
        for param in sorted(params, key=lambda p: -work_of(p.shape)):
            submesh, along, work = param.submesh, axes[param.weight, param.submesh], work_of(param.shape)
            sizes = dict(submesh.axes)
            homes = (Home(along, at) for at in itertools.product(*(range(sizes[axis]) for axis in along)))
            found = min(homes, key=lambda home: max(self.load.get(device, 0) for device in _devices(home, submesh)))
            self.homes[param.weight, submesh] = found
            for device in _devices(found, submesh):
                self.load[device] = self.load.get(device, 0) + work


def _devices(home: Home, submesh: Submesh) -> list[tuple[Submesh, Coordinates]]:
    return [(submesh, device) for device in home.devices(submesh)]


def work_of(shape: Shape) -> int:
    """The multiplications of a matrix with its own transpose, the shorter way; the elements of a vector."""
    sizes = sorted(shape.sizes)
    return math.prod(sizes) * (sizes[0] if len(sizes) > 1 else 1)
