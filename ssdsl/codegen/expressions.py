"""Writes instructions as Python: an operator as a line that works on a part, with local shapes and with the kernels of
parts; collectives and slices.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ssdsl.ir.comm import AllReduce, AllToAll, Exchange, KeepFirst, Narrow, Step, cuts_of, joined_cuts
from ssdsl.ir.function import Conversion, Offset, OpPart, PartRuns, Region, WindowPart
from ssdsl.ir.layout import Cut
from ssdsl.ir.value import Axis, Coordinate, Size, Time
from ssdsl.model.graph import Operator, Order, Ref
from ssdsl.model.memory.storage import is_plain
from ssdsl.model.ops.reader import grouping
from ssdsl.model.target import TorchWord
from ssdsl.plan.regions import Runs, lengths_of, parts_of
from ssdsl.text.diagnostic import InternalError

Arguments = list[str]
GroupName = Callable[[tuple[str, ...]], str]  # axes of the mesh -> the name of the group along them
UNBOUNDED = str(2**63 - 1)  # the end of a slice that goes to the end
NAMED = re.compile(r", (?P<name>\w+)=(?P<value>\{\w+\}|\(\)|\w+)")  # an argument by name in a template


def expression(
    operator: Operator, op: OpPart, reads: Sequence[str], group: GroupName, calls: Mapping[str, str] | None = None
) -> str:
    """The call on a part. `reads` are the Python names of its operands; `group` names the group along some axes.

    Literals that have a default, or that only a kernel knows, stand by name. A profile has `calls`, templates in place
    of those in rows, and arguments by their place alone.
    """
    args, kwargs = _arguments(operator, laid_out([*_operands(operator, op, reads, group)], op.orders))
    unequal = {s.coordinate.name: s.digit.sizes for s in op.splits if isinstance(s.coordinate, Time)}
    if (groups := grouping(operator)) is not None:
        channels = op.results[0].shape[groups.axis]
        count = Size(channels.known // groups.size, channels.uneven)
        args[groups.position] = extent_text(count, group, unequal)
    if op.kernel.function:
        return _kernel(operator, op, args, kwargs, group, calls)
    extents = [extent_text(size, group, unequal) for size in op.results[0].shape] if op.results else []
    match operator.target:
        case "aten::reshape":
            return f"{args[0]}.reshape({', '.join(extents) if extents else '()'})"
        case "aten::expand":
            return f"{args[0]}.expand({', '.join(extents)})"
        case "aten::split.Tensor" | "aten::split_with_sizes":
            dim = int(operator.args[3]) if len(operator.args) > 3 else 0
            sizes = [extent_text(var.shape[dim], group, unequal) for var in op.results]
            given = sizes[0] if operator.kind == "split" else f"[{', '.join(sizes)}]"
            return f"{args[0]}.split({given}, {'dim=' if calls is None else ''}{dim})"
    return _plain(operator, args, kwargs, calls)


def constant_expression(operator: Operator, reads: Sequence[str]) -> str:
    """The call of an operator that depends on constants only."""
    return _plain(operator, *_arguments(operator, laid_out(reads, operator.orders)), None)


def _arguments(operator: Operator, reads: Sequence[str]) -> tuple[Arguments, dict[str, str]]:
    """The arguments behind the target as Python: those given by position, and those given by name."""
    names, unsaid = iter(reads), ("layout", "pin_memory")
    args = [text(a, names) for a in operator.args[1:]]
    return args, {k: text(v, names) for k, v in operator.kwargs if v is not None and k not in unsaid}


def _plain(operator: Operator, args: Arguments, kwargs: Mapping[str, str], calls: Mapping[str, str] | None) -> str:
    """A call without a kernel: in the form of its row's `text`, else by its full name."""
    if operator.target == "aten::_to_copy":
        return f"{args[0]}.to({', '.join(_given(kwargs))})"
    form, is_torchs = operator.row.text, operator.target.startswith("aten::")
    form = None if kwargs else form
    if callable(form):
        return form(_named(operator, args, kwargs))
    if form is not None and "{" in form:
        return _filled(form, _named(operator, args, kwargs), calls)
    if calls is None and (is_torchs or form is None):
        args = _spelled(operator, args)
    if form is not None:
        return _written(form, args)
    overload = str(operator.args[0])  # the file has `aten = torch.ops.aten`
    return f"{overload if is_torchs else f'torch.ops.{overload}'}({', '.join([*args, *_given(kwargs)])})"


def _spelled(operator: Operator, args: Arguments) -> Arguments:
    """The arguments of a call of torch's as one writes them: a literal that has a default is named, or left out if it
    is the default; tensors, and what each call has to say, stand by their place as long as nothing before them is
    named.

    `x, 1, 2` of a transpose, `x, [0, 1], value=-100.0` of a pad, `x, dim=1, start=1` of a slice.
    """
    written: Arguments = []
    is_named = False
    for parameter, item, word in zip(operator.args[0].parameters, operator.args[1:], args, strict=False):
        is_literal = not any(isinstance(one, Ref) for one in (item if isinstance(item, tuple) else (item,)))
        if is_literal and parameter.optional and word in (text(parameter.default, iter(())), UNBOUNDED):
            is_named = True
            continue
        is_named |= is_literal and parameter.optional
        written.append(f"{parameter.name}={word}" if is_named else word)
    return written


def _filled(template: str, words: Mapping[str, str], calls: Mapping[str, str] | None) -> str:
    """A call with its arguments; what is named and None is left out."""
    function = template.partition("(")[0]
    if calls is None:
        absent = {"None", *(word for word, value in words.items() if value == "None")}
        template = NAMED.sub(lambda found: "" if found["value"].strip("{}") in absent else found[0], template)
    elif function in calls:
        template = calls[function]
    elif "." not in function or function.startswith("F."):
        template = NAMED.sub(r", \g<value>", template)
    return template.format_map(words)


def _given(kwargs: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in kwargs.items()]


def _written(form: str, args: Arguments) -> str:
    """A call in the form that its row gives: `F.linear`, `.sum` or `+`."""
    if form.startswith("."):
        return f"{args[0]}{form}({', '.join(args[1:])})"
    if form[0].isidentifier():
        return f"{form}({', '.join(args)})"
    return f"{args[0]} {form} {args[1]}"


def _named(operator: Operator, args: Arguments, kwargs: Mapping[str, str]) -> dict[str, str]:
    """The arguments by the names of their parameters; those that are not given have their defaults."""
    target = operator.args[0]
    given: dict[str, str] = target.given(args, kwargs)
    return {p.name: text(p.default, iter(())) for p in target.parameters} | given


def _operands(operator: Operator, op: OpPart, reads: Sequence[str], group: GroupName) -> Iterator[str]:
    """The operands' names. If the sum is split, only the first part adds an operand that is added `once`."""
    for operand, name in zip(operator.inputs, reads, strict=True):
        yield once_text(name, op.first, group) if operand.once else name


def once_text(value: str, first: Sequence[Coordinate], group: GroupName) -> str:
    """A value that only the first part along some coordinates adds."""
    space = tuple(name for c in first if isinstance(c, Axis) for name in c.names)
    if time := [c.name for c in first if isinstance(c, Time)]:
        value = f"first_time({value}, {', '.join(time)})"
    return f"first({value}, {group(space)})" if space else value


def laid_out(reads: Sequence[str], orders: Sequence[Order]) -> list[str]:
    """The operands, made contiguous in the memory order that their operator asks for."""
    if not orders:
        return [*reads]
    pairs = zip(reads, orders, strict=True)
    return [f"contiguous({name})" if is_plain(order) else f"contiguous({name}, {order})" for name, order in pairs]


def _kernel(
    operator: Operator,
    op: OpPart,
    args: Arguments,
    kwargs: Mapping[str, str],
    group: GroupName,
    calls: Mapping[str, str] | None,
) -> str:
    """The call of a kernel that computes a part, where a plain call on sliced inputs would be wrong."""
    kernel, own = op.kernel, operator.row
    named = _named(operator, args, kwargs)
    if kernel.windows:
        inside = _sum(kernel.offsets, group)
        rows = min((offset.digit.stride for offset in kernel.offsets), default=0)
        named["parts"] = f"[{', '.join(_window(part, group, inside, rows) for part in kernel.windows)}]"
        return _filled(own.windows, named, calls)
    given = next((k for k in (own.kernel, own.ring) if k is not None and k.function == kernel.function), None)
    if given is None:
        raise InternalError(f"the row of `{operator.target}` has no kernel `{kernel.function}`")
    told = {
        "start": _sum(kernel.offsets, group) or 0,
        "part": _sum(kernel.before, group),
        "places": f"[{', '.join(f'({_sum(p.offsets, group) or 0}, {p.size})' for p in kernel.places)}]",
        "regions": None if kernel.region is None else _regions(op, kernel.region, group),
        "size": kernel.size,
        "count": kernel.count,
        "group": group(kernel.around) if kernel.axes else None,
        "merging": group(kernel.merging) if kernel.merging else None,
        "queries": None if kernel.queries is None else _queries(kernel.queries, group),
    }
    return _filled(given.call, named | {word: str(told[word]) for word in told if given.tells(word)}, calls)


def _regions(op: OpPart, region: Region, group: GroupName) -> str:
    """The positions of the parts of a kernel's process group. Each ring whose results are merged has its own."""
    if not op.kernel.merging:
        return str(region.runs)
    count = op.parts_along(op.kernel.around)
    rings = tuple(region.runs[n : n + count] for n in range(0, len(region.runs), count))
    return f"{rings}[{group(op.kernel.merging)}.index]"


def _queries(queries: PartRuns, group: GroupName) -> str:
    """The positions of a part's queries: `(((0, 8),), ((8, 16),))[g.index]`."""
    return f"{queries.runs}[{place_text(queries.coordinate, group)}]"


def _window(part: WindowPart, group: GroupName, inside: str, rows: int) -> str:
    """`Part(2, start=(0, 7)[h.index], end=(7, 13)[h.index], first=(0, 6)[h.index], size=13)`. If the part is split
    again, its part begins at `inside` and has `rows` results."""
    place = place_text(part.coordinate, group)
    columns: dict[str, list[int] | list[Runs]] = {
        "start": [runs[0][0] for runs in part.results],
        "end": [runs[-1][1] for runs in part.results],
        "first": [first for first, _ in part.needs],
    }
    if any(len(runs) > 1 for runs in part.results):
        columns["runs"] = [*part.results]
    words = {name: f"({', '.join(map(str, values))})[{place}]" for name, values in columns.items()}
    if inside:
        words["start"] += f" + {inside}"
        words["end"] = f"{words['start']} + {rows}"
    given = [f"{name}={value}" for name, value in words.items()]
    given += [f"size={part.size}", *([f"operand={part.operand}"] if part.operand else [])]
    return f"Part({', '.join([str(part.axis), *given])})"


def place_text(coordinate: Coordinate, group: GroupName) -> str:
    """The number of the part along a coordinate: `tp.index`, `node_gpu.index`, or `m`."""
    return f"{group(coordinate.names)}.index" if isinstance(coordinate, Axis) else coordinate.name


def _sum(offsets: tuple[Offset, ...], group: GroupName) -> str:
    return " + ".join(_offset(offset, group) for offset in offsets)


def _offset(offset: Offset, group: GroupName) -> str:
    """The start of a part: `tp.index * 64`, or `(0, 3)[m]` behind unequal parts."""
    place, digit = place_text(offset.coordinate, group), offset.digit
    if digit.at is None:
        return place if digit.stride == 1 else f"{place} * {digit.stride}"
    return f"({', '.join(str(runs[0][0]) for runs in digit.at)})[{place}]"


def extent_text(size: Size, group: GroupName, unequal: Mapping[str, tuple[int, ...] | None]) -> str:
    """The local size of an axis as Python: a number, times the size of a part if parts are unequal: `n_m`, if index
    `m` has these `unequal` sizes, else `(5, 4, 4)[sp.index]`."""
    words = [
        f"n_{coordinate.name}" if unequal.get(coordinate.name) == sizes else f"{sizes}[{place_text(coordinate, group)}]"
        for coordinate, sizes in size.uneven
    ]
    return " * ".join([*words, *([str(size.known)] if size.known != 1 or not words else [])])


def assignment(operator: Operator, targets: Sequence[str]) -> str:
    """The left-hand side of the call: a trailing comma unpacks the one tensor of a sequence."""
    return ", ".join(targets) + ("," if len(targets) == 1 and operator.args[0].unpacks else "")


def text(item: Any, names: Iterator[str]) -> str:
    """An argument as Python; each tensor takes the next of `names`."""
    match item:
        case Ref():
            return next(names)
        case tuple():
            return f"[{', '.join(text(i, names) for i in item)}]"
        case str():
            return f'"{item}"'
        case float() if not math.isfinite(item):
            return f'float("{item}")'
        case TorchWord(kind="device"):
            return "device"
    return repr(item)


# -- collectives and slices --------------------------------------------------------------------------------------------


def step_text(step: Step, group: GroupName, *, in_place: bool = False, rows: Sequence[str] = ()) -> str:
    """One step: `all_gather(tp, dim=1)`, `all_to_all(sp, [(1, 1, 2)], [(2, 1, 2)])`; `all_reduce_(tp)` if it may
    overwrite.

    An all_to_all of `rows` reads their counts: `rows_to_all(ep, [(0, 2, 2)], [(0, 1, 2)], counts, counts_1)`.
    """
    mark = "_" if in_place and isinstance(step, AllReduce) else ""
    called = "rows_to_all" if rows and isinstance(step, AllToAll) else step.kind
    places: list[str] = []
    match step:
        case AllToAll():
            places = [*map(_places_text, (step.source, step.target)), *rows]
        case _ if cuts := cuts_of(step):  # a sum has none
            cut = cuts[0]
            places = [f"dim={cut.dim}", *([f"outer={cut.outer}"] if cut.outer != 1 else [])]
            if isinstance(step, Exchange):
                places += [f"have={cut.at}", f"need={step.target.at}", *(["sums=True"] if step.sums else [])]
            elif cut.at is not None:
                places.append(f"at={cut.at}")
    return f"{called}{mark}({', '.join([group(step.axes), *places])})"


def _places_text(cuts: tuple[Cut, ...]) -> str:
    """The digits of an all_to_all, for the runtime: `[(0, 1, 4)]`."""
    return str([(cut.dim, cut.outer, cut.count) for cut in joined_cuts(cuts)])


def conversion_text(
    instr: Conversion, value: str, group: GroupName, also: Sequence[str] = (), called: str = "reshard"
) -> str:
    """The right-hand side that converts a value, or starts to; `also` are the names of what else the steps read."""
    match instr.forward:
        case (Narrow(in_time=True) as step,):
            return _part_text(value, step.target, step.axes[0])
        case (KeepFirst(in_time=True) as step,):
            return f"first_time({value}, {step.axes[0]})"
        case (Exchange(in_time=True, source=cut),):
            return f"extend({also[0]}, {value}, dim={cut.dim}{f', outer={cut.outer}' if cut.outer != 1 else ''})"

    def texts(steps: tuple[Step, ...], may: bool, rows: Sequence[str]) -> str:
        return ", ".join(step_text(s, group, in_place=n == 0 and may, rows=rows) for n, s in enumerate(steps))

    forward = texts(instr.forward, instr.in_place[0], also)
    backward = texts(instr.backward, instr.in_place[1], also[::-1])
    sides = [f"{side}=[{text}]" for side, text in (("forward", forward), ("backward", backward)) if text]
    return f"{called}({', '.join([value, *sides, *(['again=True'] if instr.again else [])])})"


def _part_text(value: str, cut: Cut, index: str) -> str:
    """The running part along an index in time."""
    if cut.at is None:
        return f"take({value}, dim={cut.dim}, outer={cut.outer}, parts={cut.count}, index={index})"
    sizes = lengths_of(cut.at)
    if cut.at == parts_of(sizes):
        return f"take_sizes({value}, dim={cut.dim}, outer={cut.outer}, sizes={sizes}, index={index})"
    return f"take_at({value}, dim={cut.dim}, outer={cut.outer}, at={cut.at}, index={index})"
