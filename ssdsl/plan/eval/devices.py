"""Meshes and slices of them."""

from math import prod

from ssdsl.lang import nodes
from ssdsl.plan.context import Context
from ssdsl.plan.errors.place import NoSuchAxis, NoSuchDevice
from ssdsl.plan.errors.select import FixedTwice
from ssdsl.plan.errors.values import Wanted, required
from ssdsl.plan.eval.values import Devices, Value, is_whole
from ssdsl.plan.plan import Mesh
from ssdsl.text.diagnostic import PlanError


def mesh_size(mesh: Mesh, fixed: tuple[tuple[str, int], ...] = ()) -> int:
    """The number of devices of a mesh, or of a slice of it."""
    return prod(n for axis, n in mesh.axes if axis not in dict(fixed))


def slice_of(ctx: Context, value: Devices, name: nodes.Word, key: Value, at: nodes.Expr) -> Devices:
    """`gpus[pp = s]`: the devices at one coordinate of an axis; raises PlanError where there are none."""
    axes = dict(ctx.facts.meshes[value.mesh].axes)
    if name.text not in axes:
        raise PlanError(NoSuchAxis(name.span, value.mesh, name.text, tuple(axes)))
    coordinate = required(key, is_whole, at, Wanted.WHOLE)
    fixed = dict(value.fixed)
    if name.text in fixed:
        raise PlanError(FixedTwice(name.span, name.text))
    if not 0 <= coordinate < axes[name.text]:
        raise PlanError(NoSuchDevice(at.span, name.text, value.mesh, coordinate, axes[name.text]))
    fixed[name.text] = coordinate
    return Devices(value.mesh, tuple((axis, fixed[axis]) for axis in axes if axis in fixed))
