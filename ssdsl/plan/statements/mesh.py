"""`mesh`: the devices, and slices of them."""

from typing import Any

from ssdsl.lang import nodes
from ssdsl.lang.suggest import listed, suggest
from ssdsl.plan.context import Context
from ssdsl.plan.errors.place import BadMesh, NoSuchAxis, NoSuchDevice
from ssdsl.plan.errors.select import FixedTwice
from ssdsl.plan.errors.values import WrongType
from ssdsl.plan.eval.scope import Scope
from ssdsl.plan.eval.values import Devices, is_number, kind_of
from ssdsl.plan.plan import Mesh
from ssdsl.text.diagnostic import PlanError

MOST_DEVICES = 65536


def declare_mesh(ctx: Context, scope: Scope, s: nodes.Mesh, sizes: list[int]) -> None:
    """A mesh takes the ranks behind those of the meshes before it."""
    total = 1
    for axis, size in zip(s.axes, sizes, strict=True):
        if size < 1:
            raise PlanError(BadMesh(axis.span, f"the axis `{axis.name.text}` has {size} devices", "give at least 1"))
        total *= size
    first = sum(mesh_size(m) for m in ctx.meshes.values())
    if first + total > MOST_DEVICES:
        reason = f"{first + total:,} devices are too many"
        raise PlanError(BadMesh(s.span, reason, f"a plan has at most {MOST_DEVICES:,} devices"))
    _check_names(ctx, s)
    scope.bind(s.name, Devices(s.name.text))
    axes = tuple((a.name.text, n) for a, n in zip(s.axes, sizes, strict=True))
    ctx.meshes[s.name.text] = Mesh(s.name.text, axes, first, s.span)


def mesh_size(mesh: Mesh) -> int:
    """The number of its devices."""
    size = 1
    for _, n in mesh.axes:
        size *= n
    return size


def _check_names(ctx: Context, s: nodes.Mesh) -> None:
    seen: set[str] = set()
    for axis in s.axes:
        if axis.name.text in seen:
            raise PlanError(BadMesh(axis.name.span, f"the mesh has two axes `{axis.name.text}`", "name them apart"))
        seen.add(axis.name.text)
    if s.name.text in ctx.meshes:
        raise PlanError(BadMesh(s.name.span, f"there is already a mesh `{s.name.text}`", "name them apart"))


def slice_of(ctx: Context, value: Devices, name: nodes.Word, key: Any, at: nodes.Expr) -> Devices:
    """`gpus[pp = s]`: the devices at one coordinate of an axis."""
    axes = dict(ctx.meshes[value.mesh].axes)
    if name.text not in axes:
        known = f"its axes are {listed(axes)}"
        raise PlanError(NoSuchAxis(name.span, value.mesh, name.text, suggest(name.text, axes), known))
    if not is_number(key):
        raise PlanError(WrongType(at.span, "a whole number", kind_of(key), ""))
    if name.text in dict(value.fixed):
        raise PlanError(FixedTwice(name.span, name.text))
    size = axes[name.text]
    if not 0 <= key < size:
        raise PlanError(NoSuchDevice(at.span, name.text, value.mesh, key, size, size - 1))
    fixed = dict(value.fixed) | {name.text: key}
    return Devices(value.mesh, tuple((axis, fixed[axis]) for axis in axes if axis in fixed))
