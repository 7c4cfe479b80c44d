"""One operator as a line of Python, working on its part: shapes are local, kernels those that parts need."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ssdsl.lower.cuts import LINEAR, OperatorCut
from ssdsl.model.call import schema_arguments
from ssdsl.model.graph import Operand, Operator, Ref
from ssdsl.model.ops.op import PartKernel
from ssdsl.model.ops.reader import kernel_dims, parameters
from ssdsl.model.ops.registry import row
from ssdsl.text.diagnostic import InternalError

Arguments = list[str]


def expression(
    operator: Operator,
    reads: Sequence[str],
    cuts: tuple[OperatorCut, ...],
    *,
    group: Callable[[tuple[str, ...]], str],
) -> str:
    """The call on a part. `reads` are the Python names of its operands; `group` names the group along some mesh
    axes."""
    names = iter(_operands(operator, reads, cuts, group))
    args = [text(a, names) for a in operator.args[1:]]
    kwargs = [
        f"{k}={text(v, names)}" for k, v in operator.kwargs if v is not None and k != "layout" and k != "pin_memory"
    ]
    extents = [_extent(operator, axis, cuts) for axis in operator.outputs[0].axes]
    match operator.target:
        case "aten::reshape":
            return f"{args[0]}.reshape({', '.join(extents) if extents else '()'})"
        case "aten::expand":
            return f"{args[0]}.expand({', '.join(extents)})"
        case "aten::split.Tensor" | "aten::split_with_sizes":
            dim = int(operator.args[3]) if len(operator.args) > 3 else 0
            sizes = [_extent(operator, o.axes[dim], cuts) for o in operator.outputs]
            given = sizes[0] if operator.kind == "split" else f"[{', '.join(sizes)}]"
            return f"{args[0]}.split({given}, {dim})"
        case "aten::_to_copy":
            return f"{args[0]}.to({', '.join(kwargs)})"
    op = row(operator)
    if op.kernel is not None and (part := _part(operator, op.kernel, args, cuts, group)) is not None:
        return part
    if op.text is not None and not kwargs:
        return op.text(_named(operator, args)) if callable(op.text) else _written(op.text, operator, args)
    overload = str(operator.args[0])  # the file has `aten = torch.ops.aten`
    name = overload if operator.target.startswith("aten::") else f"torch.ops.{overload}"
    return f"{name}({', '.join(args + kwargs)})"


def _written(form: str, operator: Operator, args: Arguments) -> str:
    """A call in the form that its row gives: `F.linear`, `.sum`, `+`, or a text with arguments in braces."""
    if "{" in form:
        return form.format_map(_named(operator, args))
    if form.startswith("."):
        return f"{args[0]}{form}({', '.join(args[1:])})"
    if form[0].isidentifier():
        return f"{form}({', '.join(args)})"
    return f"{args[0]} {form} {args[1]}"


def _named(operator: Operator, args: Arguments) -> dict[str, str]:
    """The arguments by the names of their parameters; those that are not given have their defaults."""
    parameters = schema_arguments(operator.args[0])
    defaults = {p.name: repr(p.default_value) for p in parameters}
    return defaults | dict(zip((p.name for p in parameters), args, strict=False))


def _operands(
    operator: Operator, reads: Sequence[str], cuts: tuple[OperatorCut, ...], group: Callable[[tuple[str, ...]], str]
) -> Iterator[str]:
    """The operands' names; an addend of a sum that is split is added by the first part only."""
    summed = [c for c in cuts if c.dim != LINEAR and operator.summed(c.dim)]
    space = tuple(c.index for c in summed if c.in_space)
    time = [c.index for c in summed if not c.in_space]
    if operator.stage == "constant":
        yield from reads
        return
    for operand, name in zip(operator.inputs, reads, strict=True):
        if operand.once and time:
            name = f"first_time({name}, {', '.join(time)})"
        if operand.once and space:
            name = f"first({name}, {group(space)})"
        yield name


def _part(
    operator: Operator,
    kernel: PartKernel,
    args: Arguments,
    cuts: tuple[OperatorCut, ...],
    group: Callable[[tuple[str, ...]], str],
) -> str | None:
    """The kernel of a part that a plain call on sliced inputs would compute wrongly; None where no cut needs it."""
    over = [c for c in cuts if c.dim in kernel_dims(operator, *kernel.axis)]
    if not over:
        return None
    named = _named(operator, args)
    if "{start}" in kernel.call:
        tensors = zip(parameters(operator), operator.inputs, strict=True)
        split = next(o for name, o in tensors if name == kernel.axis[0])
        named["start"] = _start(operator, split, over, group)
    if "{group}" in kernel.call:
        named["group"] = group(tuple(c.index for c in over))
    return kernel.call.format_map(named)


def _start(
    operator: Operator, operand: Operand, cuts: list[OperatorCut], group: Callable[[tuple[str, ...]], str]
) -> str:
    """Where this part begins along a split axis of an operand, which may be made of several factors."""
    axis = next(a for a in operand.axes if cuts[0].dim in a)
    if any(c.dim != axis[0] for c in cuts):
        raise InternalError(f"parts of `{operand.value}` along an inner factor are not consecutive")
    inner = math.prod(operator.dims[d].size for d in axis[1:])
    where = [f"{group((c.index,))}.index" if c.in_space else c.index for c in cuts]
    return " + ".join(f"{place} * {c.stride * inner}" for place, c in zip(where, cuts, strict=True))


def _extent(operator: Operator, axis: tuple[int, ...], cuts: tuple[OperatorCut, ...]) -> str:
    """The local size of an axis, as Python: a number, times `n_m` where the parts of index `m` are uneven."""
    known = math.prod(operator.dims[d].size for d in axis)
    uneven = []
    for c in cuts:
        if c.dim in axis:
            if c.sizes is None:
                known //= c.count
            else:
                known //= sum(c.sizes)
                uneven.append(f"n_{c.index}")
    return " * ".join([*uneven, *([str(known)] if known != 1 or not uneven else [])])


def assignment(operator: Operator, targets: Sequence[str]) -> str:
    """The left-hand side of the call: a trailing comma unpacks the one tensor of a sequence."""
    returns = operator.args[0]._schema.returns
    sequence = len(returns) > 1 or "List" in str(returns[0].type)
    return ", ".join(targets) + ("," if len(targets) == 1 and sequence else "")


def text(item: Any, names: Iterator[str]) -> str:
    """An argument as Python; tensors are the next of `names`."""
    match item:
        case Ref():
            return next(names)
        case tuple():
            return f"[{', '.join(text(i, names) for i in item)}]"
        case str():
            return f'"{item}"'
        case float() if not math.isfinite(item):
            return f'float("{item}")'
        case torch.device():
            return "device"
    return str(item) if isinstance(item, (torch.dtype, torch.memory_format, torch.layout)) else repr(item)
