"""One operator as a line of Python, working on its part: shapes are local, kernels those that parts need."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ssdsl.lower.cuts import LINEAR, OperatorCut
from ssdsl.model.graph import Operand, Operator, Ref
from ssdsl.text.diagnostic import InternalError

Arguments = list[str]


def _infix(sign: str) -> Callable[[Arguments], str]:
    return lambda a: f"{a[0]} {sign} {a[1]}"


def _method(name: str) -> Callable[[Arguments], str]:
    return lambda a: f"{a[0]}.{name}({', '.join(a[1:])})"


def _function(name: str) -> Callable[[Arguments], str]:
    return lambda a: f"{name}({', '.join(a)})"


# How a call is written when it has no keyword arguments; all others as `aten.kind.overload(...)`.
PRETTY: dict[str, Callable[[Arguments], str]] = {
    **{kind: _infix(sign) for kind, sign in {"add": "+", "sub": "-", "mul": "*", "div": "/", "pow": "**"}.items()},
    **{
        kind: _infix(sign)
        for kind, sign in {"ne": "!=", "eq": "==", "ge": ">=", "gt": ">", "le": "<=", "lt": "<"}.items()
    },
    **{kind: _infix(sign) for kind, sign in {"__and__": "&", "__or__": "|"}.items()},
    **{
        kind: _method(kind)
        for kind in ("transpose", "permute", "softmax", "masked_fill", "select", "unbind", "sum", "roll")
    },
    **{
        kind: _function(f"torch.{kind}")
        for kind in ("tanh", "relu", "exp", "sigmoid", "matmul", "einsum", "addmm", "bmm")
    },
    "linear": _function("F.linear"),
    "gelu": _function("F.gelu"),
    "silu": _function("F.silu"),
    "layer_norm": lambda a: f"F.layer_norm({', '.join(a[:5])})",
    "embedding": lambda a: f"F.embedding({a[1]}, {a[0]})",
    "conv2d": _function("F.conv2d"),
}


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
    match operator.kind:
        case "reshape":
            return f"{args[0]}.reshape({', '.join(extents) if extents else '()'})"
        case "expand":
            return f"{args[0]}.expand({', '.join(extents)})"
        case "split" | "split_with_sizes":
            dim = int(operator.args[3]) if len(operator.args) > 3 else 0
            sizes = [_extent(operator, o.axes[dim], cuts) for o in operator.outputs]
            given = sizes[0] if operator.kind == "split" else f"[{', '.join(sizes)}]"
            return f"{args[0]}.split({given}, {dim})"
        case "_to_copy":
            return f"{args[0]}.to({', '.join(kwargs)})"
        case "cross_entropy_loss":
            return _cross_entropy(operator, args, cuts, group)
    if (part := _part(operator, args, cuts, group)) is not None:
        return part
    if operator.kind in PRETTY and not kwargs:
        return PRETTY[operator.kind](args)
    return f"{operator.args[0]}({', '.join(args + kwargs)})"


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
    operator: Operator, args: Arguments, cuts: tuple[OperatorCut, ...], group: Callable[[tuple[str, ...]], str]
) -> str | None:
    """Kernels for a part that a plain call on sliced inputs would compute wrongly."""
    if operator.kind == "embedding":
        rows = [c for c in cuts if c.dim in operator.inputs[0].axes[0]]
        if rows:
            return f"embedding_part({args[1]}, {args[0]}, start={_start(operator, operator.inputs[0], rows, group)})"
    if operator.kind == "batch_norm":
        over = tuple(c.index for c in cuts if c.dim != LINEAR and operator.dims[c.dim].combined)
        if over:
            return f"batch_norm_parts({', '.join(args[:5])}, {args[6]}, {args[7]}, {group(over)})"
    return None


def _cross_entropy(
    operator: Operator, args: Arguments, cuts: tuple[OperatorCut, ...], group: Callable[[tuple[str, ...]], str]
) -> str:
    reduction = {"0": "none", "1": "mean", "2": "sum"}[args[3]]
    over = [c for c in cuts if c.dim != LINEAR and operator.dims[c.dim].combined]
    if over:
        start = _start(operator, operator.inputs[0], over, group)
        names = group(tuple(c.index for c in over))
        return f"cross_entropy_parts({args[0]}, {args[1]}, {start}, {names}, ignore_index={args[4]})"
    extra = f", weight={args[2]}" if args[2] != "None" else ""
    extra += f", label_smoothing={args[5]}" if len(args) > 5 and float(args[5]) else ""
    return f'F.cross_entropy({args[0]}, {args[1]}, reduction="{reduction}", ignore_index={args[4]}{extra})'


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
