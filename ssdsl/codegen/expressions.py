"""One operator as a line of Python, working on its part: shapes are local, kernels those that parts need."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ssdsl.ir.function import Kernel, Offset, Op
from ssdsl.ir.value import Axis, Size, Time
from ssdsl.model.graph import Operator, Ref
from ssdsl.text.diagnostic import InternalError

Arguments = list[str]
GroupName = Callable[[tuple[str, ...]], str]  # axes of the mesh -> the name of the group along them


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


def expression(operator: Operator, op: Op, reads: Sequence[str], group: GroupName) -> str:
    """The call on a part. `reads` are the Python names of its operands; `group` names the group along some axes."""
    names = iter(_operands(operator, op, reads, group))
    args = [text(a, names) for a in operator.args[1:]]
    kwargs = [
        f"{k}={text(v, names)}" for k, v in operator.kwargs if v is not None and k != "layout" and k != "pin_memory"
    ]
    if op.kernel.function:
        return _kernel(op.kernel, args, group)
    extents = [extent_text(size) for size in op.results[0].shape] if op.results else []
    match operator.kind:
        case "reshape":
            return f"{args[0]}.reshape({', '.join(extents) if extents else '()'})"
        case "expand":
            return f"{args[0]}.expand({', '.join(extents)})"
        case "split" | "split_with_sizes":
            dim = int(operator.args[3]) if len(operator.args) > 3 else 0
            sizes = [extent_text(var.shape[dim]) for var in op.results]
            given = sizes[0] if operator.kind == "split" else f"[{', '.join(sizes)}]"
            return f"{args[0]}.split({given}, {dim})"
        case "_to_copy":
            return f"{args[0]}.to({', '.join(kwargs)})"
        case "cross_entropy_loss":
            return _cross_entropy(args)
    if operator.kind in PRETTY and not kwargs:
        return PRETTY[operator.kind](args)
    return f"{operator.args[0]}({', '.join(args + kwargs)})"


def constant_expression(operator: Operator, reads: Sequence[str]) -> str:
    """The call of an operator that depends on nothing."""
    names = iter(reads)
    args = [text(a, names) for a in operator.args[1:]]
    kwargs = [
        f"{k}={text(v, names)}" for k, v in operator.kwargs if v is not None and k != "layout" and k != "pin_memory"
    ]
    if operator.kind == "_to_copy":
        return f"{args[0]}.to({', '.join(kwargs)})"
    if operator.kind in PRETTY and not kwargs:
        return PRETTY[operator.kind](args)
    return f"{operator.args[0]}({', '.join(args + kwargs)})"


def _operands(operator: Operator, op: Op, reads: Sequence[str], group: GroupName) -> Iterator[str]:
    """The operands' names; an addend of a sum that is split is added by the first part only."""
    space = tuple(c.name for c in op.first if isinstance(c, Axis))
    time = [c.name for c in op.first if isinstance(c, Time)]
    for operand, name in zip(operator.inputs, reads, strict=True):
        if operand.once and time:
            name = f"first_time({name}, {', '.join(time)})"
        if operand.once and space:
            name = f"first({name}, {group(space)})"
        yield name


def _kernel(kernel: Kernel, args: Arguments, group: GroupName) -> str:
    """A call of the runtime, for a part that a plain call on sliced inputs would compute wrongly."""
    start = " + ".join(_offset(offset, group) for offset in kernel.offsets)
    match kernel.function:
        case "embedding_part":
            return f"embedding_part({args[1]}, {args[0]}, start={start})"
        case "batch_norm_parts":
            return f"batch_norm_parts({', '.join(args[:5])}, {args[6]}, {args[7]}, {group(kernel.axes)})"
        case "cross_entropy_parts":
            return f"cross_entropy_parts({args[0]}, {args[1]}, {start}, {group(kernel.axes)}, ignore_index={args[4]})"
    raise InternalError(f"the runtime has no kernel {kernel.function}")


def _offset(offset: Offset, group: GroupName) -> str:
    """Where a part begins: `tp.index * 64`, or `(0, 3)[m]` behind unequal parts."""
    place = f"{group((offset.coordinate.name,))}.index" if isinstance(offset.coordinate, Axis) else offset.coordinate.name
    if offset.sizes is None:
        return f"{place} * {offset.stride}"
    starts = itertools.accumulate((n * offset.stride for n in offset.sizes[:-1]), initial=0)
    return f"({', '.join(map(str, starts))})[{place}]"


def _cross_entropy(args: Arguments) -> str:
    reduction = {"0": "none", "1": "mean", "2": "sum"}[args[3]]
    extra = f", weight={args[2]}" if args[2] != "None" else ""
    extra += f", label_smoothing={args[5]}" if len(args) > 5 and float(args[5]) else ""
    return f'F.cross_entropy({args[0]}, {args[1]}, reduction="{reduction}", ignore_index={args[4]}{extra})'


def extent_text(size: Size) -> str:
    """The local size of an axis, as Python: a number, times `n_m` where the parts of index `m` are uneven."""
    words = [f"n_{t.name}" for t in size.uneven]
    return " * ".join([*words, *([str(size.known)] if size.known != 1 or not words else [])])


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
