"""The layouts of a model's values under a plan of transformers, forward: what each operator computes on a device, and
where a module's style joins it.

Two devices, `down_proj` of a feed-forward with the style `rowwise`, its weight [hidden 8, ffn 16]:

    mul     : [batch, seq, ffn]     cut along ffn        as gate_proj and up_proj leave it
    linear  : [batch, seq, hidden]  addend               the cut dimension is summed over
    behind the module               whole                `rowwise` sums what its module leaves
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ssdsl.model.graph import Graph, Operand, Operator, Origin
from ssdsl.model.ops.rows import linear_with
from ssdsl.record import Record
from ssdsl.tp_plans.matching import module_of, styled_modules, weight_style, wildcard
from ssdsl.tp_plans.styles import Leaves, Style, Takes, WeightCut


class LocalKind(StrEnum):
    """How a tensor, or its gradient, lies on the devices. A gradient is `mixed` if some of its addends are summed
    already and others are not: no later sum is right."""

    WHOLE = "whole"
    CUT = "cut"
    ADDEND = "addend"
    MIXED = "mixed"


class LocalShare(Record):
    """A kind, with the factor of the axis that is cut; `off` if a mistake has reached it."""

    kind: LocalKind
    axis: int = 0
    factor: int = 0
    off: bool = False


WHOLE, ADDEND = LocalShare(LocalKind.WHOLE), LocalShare(LocalKind.ADDEND)


class Mistake(Record):
    """A place where what devices compute is not a part of what the model computes: its module, and what is wrong."""

    module: str
    what: str


@dataclass(slots=True)
class Layouts:
    """The layouts of all values that depend on weights. `made` are those at their makers, `read` those at readers in
    modules with styles, by value and these modules; `cuts` has the dimension that each operator's parts divide,
    `carried` the operators that work on addends, with these; `mistakes` are those of the forward."""

    graph: Graph
    plan: Mapping[str, str]
    devices: int
    styled: dict[str, Style]
    made: dict[str, LocalShare] = field(default_factory=dict)
    cuts: dict[str, int] = field(default_factory=dict)
    carried: dict[str, frozenset[str]] = field(default_factory=dict)
    mistakes: list[Mistake] = field(default_factory=list)

    def around(self, path: str) -> tuple[str, ...]:
        """The modules with a style that a module is in, the innermost first; itself if it has one."""
        words = module_of(path).split(".")
        return tuple(p for n in range(len(words), 0, -1) if (p := ".".join(words[:n])) in self.styled)

    def crossed(self, value: str, reader: Operator) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The modules with a style that a value leaves on its way to a reader, and those that it then enters, in this
        order. Weights enter none: modules own them."""
        maker = self.graph.makers.get(value)
        if maker is None and self.graph.values[value].origin is not Origin.INPUT:
            return (), ()
        left, entered = self.around(maker.path) if maker else (), self.around(reader.path)
        return tuple(p for p in left if p not in entered), tuple(p for p in reversed(entered) if p not in left)

    def read(self, operand: Operand, reader: Operator) -> LocalShare:
        """The layout of a value as an operator reads it."""
        lies = self.made.get(operand.value, WHOLE)
        left, entered = self.crossed(operand.value, reader)
        for path in left:
            lies = _left(self.styled[path].leaves, lies, operand)
        for path in entered:
            lies = _entered(self.styled[path].takes, lies, operand)
        return lies


def layouts(graph: Graph, plan: Mapping[str, str], devices: int) -> Layouts:
    """The layouts of a graph's values under a plan: a style for each module or weight, `*` for numbers of layers."""
    found = Layouts(graph, plan, devices, styled_modules(graph, plan))
    for value in graph.values.values():
        if value.origin is Origin.WEIGHT:
            found.made[value.name] = _weight(found, value.name)
    for operator in graph.computing:
        _compute(found, operator)
    return found


def packed_in(sizes: tuple[int, ...], pieces: int) -> int | None:
    """The number of the first factor inside so many packed pieces: None if the axis is not made of these."""
    return 0 if pieces == 1 else (1 if len(sizes) > 1 and sizes[0] == pieces else None)


def _weight(found: Layouts, weight: str) -> LocalShare:
    """The layout of a weight: the style of its own entry, or of its module's."""
    style, value = weight_style(found.plan, weight), found.graph.values[weight]
    if style is None or style.cut is WeightCut.WHOLE or (not style.bias and weight.endswith(".bias")):
        return WHOLE
    axis, pieces = style.cut.value
    rank = len(value.shape)
    axis = axis + rank if axis < 0 else axis
    axis = max(axis, 0) if style.cut in (WeightCut.OUT, WeightCut.PACKED_OUT) else axis
    if axis >= rank or (rank == 1 and style.cut is WeightCut.PACKED_IN):
        return WHOLE
    sizes = value.sizes[axis]
    factor = packed_in(sizes, 1 if rank == 1 else pieces)
    if factor is not None:  # pieces of one part are in front of it
        factor = next((n for n in range(factor, len(sizes)) if sizes[n] > 1), None)
    if factor is None or sizes[factor] % found.devices:
        if style.leaves is Leaves.GATHERED:  # whatever the parts are: all is joined where the module ends
            return WHOLE
        names = [found.graph.dim_names.get(cls, "?") for cls in value.factors[axis]]
        shape = " · ".join(f"{name} {size}" for name, size in zip(names, sizes, strict=True))
        what = f"parts of `{weight}` are no parts of one dimension: its axis is {shape or value.shape[axis]}"
        found.mistakes.append(Mistake(weight.rpartition(".")[0], what))
        return WHOLE
    return LocalShare(LocalKind.CUT, axis, factor)


def _is_last(lies: LocalShare, operand: Operand) -> bool:
    return lies.kind is LocalKind.CUT and lies.axis == len(operand.axes) - 1


def _left(leaves: Leaves, lies: LocalShare, operand: Operand) -> LocalShare:
    """The layout of a value behind a module that it leaves."""
    match leaves:
        case Leaves.GATHERED if _is_last(lies, operand):
            return LocalShare(LocalKind.WHOLE, off=lies.off)
        case Leaves.SUMMED if lies.kind in (LocalKind.ADDEND, LocalKind.MIXED):
            return LocalShare(LocalKind.WHOLE, off=lies.off)
    return lies


def _entered(takes: Takes, lies: LocalShare, operand: Operand) -> LocalShare:
    """The layout of a value in a module that it enters."""
    match takes:
        case Takes.CUTS if lies.kind is LocalKind.WHOLE:
            return LocalShare(LocalKind.CUT, len(operand.axes) - 1, 0, lies.off)
        case Takes.DIVIDED if lies.kind is LocalKind.WHOLE:
            return LocalShare(LocalKind.ADDEND, off=lies.off)
    return lies


def said(found: Layouts, value: str) -> str:
    """A value in words: a weight's name, or what makes it."""
    maker = found.graph.makers.get(value)
    return f"`{value}`" if maker is None else f"the `{maker.kind}` of `{wildcard(module_of(maker.module))}`"


def _misread(takes: Takes, lies: LocalShare, name: str, operand: Operand) -> str:
    """What is wrong with a value that a module takes for something else; "" for nothing."""
    if takes in (Takes.WHOLE, Takes.CUTS, Takes.SENT) and lies.kind is not LocalKind.WHOLE:
        return f"takes {name} for whole; it is {lies.kind}"
    if takes is Takes.CUT and not _is_last(lies, operand):
        return f"takes {name} for a part of the last axis; it is {lies.kind}"
    return ""


def _misleft(leaves: Leaves, lies: LocalShare, name: str, operand: Operand) -> str:
    is_whole = leaves is Leaves.GATHERED and lies.kind is LocalKind.WHOLE
    if leaves in (Leaves.CUT, Leaves.GATHERED) and not (is_whole or _is_last(lies, operand)):
        return f"takes its result for a part of the last axis; it is {lies.kind}"
    if leaves is Leaves.SUMMED and lies.kind is not LocalKind.ADDEND:
        return f"sums its result over the devices; it is {lies.kind}"
    return ""


def _boundary_mistakes(found: Layouts, operator: Operator) -> Iterator[tuple[str, str]]:
    """Yields modules with a style, and what is wrong where values leave or enter them on the way to an operator."""
    for operand in operator.inputs:
        left, entered = found.crossed(operand.value, operator)
        lies, name = found.made.get(operand.value, WHOLE), said(found, operand.value)
        for path in left:
            if what := _misleft(found.styled[path].leaves, lies, name, operand):
                yield path, what
            lies = _left(found.styled[path].leaves, lies, operand)
        for path in entered:
            if what := _misread(found.styled[path].takes, lies, name, operand):
                yield path, what
            lies = _entered(found.styled[path].takes, lies, operand)


def _compute(found: Layouts, operator: Operator) -> None:
    """Adds the layouts of an operator's results."""
    wrong = list(_boundary_mistakes(found, operator))
    reads = [found.read(o, operator) for o in operator.inputs]
    off = any(lies.off for lies in reads)
    found.mistakes += [Mistake(path, what) for path, what in wrong if not off]
    if any(found.styled[p].takes is Takes.SENT for p in found.around(operator.path)):
        _sent(found, operator, off)
        return
    results, what = _results(found, operator, reads)
    if what and not off:
        found.mistakes.append(Mistake(operator.module, what))
    off = off or bool(wrong or what)
    for operand, lies in zip(operator.outputs, results, strict=True):
        found.made[operand.value] = LocalShare(lies.kind, lies.axis, lies.factor, off)


def _sent(found: Layouts, operator: Operator, off: bool) -> None:
    """What experts compute on rows that were sent to them comes back: all of it counts as an addend of the module."""
    for operand in operator.outputs:
        found.made[operand.value] = LocalShare(LocalKind.ADDEND, off=off)


def _results(found: Layouts, operator: Operator, reads: list[LocalShare]) -> tuple[list[LocalShare], str]:
    """The layouts of an operator's results, and what is wrong with them."""
    whole = [WHOLE for _ in operator.outputs]
    cut: dict[int, str] = {}
    for operand, lies in zip(operator.inputs, reads, strict=True):
        if lies.kind is LocalKind.CUT:
            axis = operand.axes[lies.axis] if lies.axis < len(operand.axes) else ()
            if lies.factor >= len(axis):
                return (
                    whole,
                    f"`{operator.kind}` reads a part of {said(found, operand.value)} along no dimension of its own",
                )
            cut.setdefault(_dim_of(operator, axis, lies.factor), operand.value)
    addends = [n for n, lies in enumerate(reads) if lies.kind in (LocalKind.ADDEND, LocalKind.MIXED)]
    if len(cut) > 1:
        names = " and ".join(f"`{operator.dims[d].name}` of {said(found, value)}" for d, value in cut.items())
        return whole, f"`{operator.kind}` reads parts of two dimensions: {names}"
    if addends:
        return _summed(found, operator, addends, bool(cut))
    for dim, value in cut.items():
        if what := _uncut(found, operator, reads, dim, value):
            return whole, what
        found.cuts[operator.name] = dim
        return [_result(operator, o, dim) for o in operator.outputs], ""
    return whole, ""


def _dim_of(operator: Operator, axis: tuple[int, ...], factor: int) -> int:
    """The operator's dimension behind a factor of an axis: of the pieces in one that is cut, the first that is longer
    than one."""
    return next((d for d in axis[factor:] if operator.dims[d].size > 1), axis[factor])


def _result(operator: Operator, operand: Operand, dim: int) -> LocalShare:
    for number, axis in enumerate(operand.axes):
        if dim in axis:
            return LocalShare(LocalKind.CUT, number, axis.index(dim))
    return ADDEND


def _summed(found: Layouts, operator: Operator, addends: list[int], is_cut: bool) -> tuple[list[LocalShare], str]:
    """The results of an operator that reads addends: addends, if it is linear in all of these together."""
    value = operator.inputs[addends[0]].value
    together = frozenset({0}) if operator.kind == "detach" else linear_with(operator, addends)
    if not together or is_cut:
        return [
            WHOLE for _ in operator.outputs
        ], f"`{operator.kind}` reads addends, {said(found, value)}, that no one has summed"
    if others := [operator.inputs[n].value for n in sorted(together) if n not in addends]:
        return (
            [WHOLE for _ in operator.outputs],
            f"`{operator.kind}` adds {said(found, others[0])}, which each device has, to addends, {said(found, value)}",
        )
    found.carried[operator.name] = frozenset(operator.inputs[n].value for n in addends)
    return [ADDEND for _ in operator.outputs], ""


def _uncut(found: Layouts, operator: Operator, reads: list[LocalShare], dim: int, value: str) -> str:
    """Why an operator cannot compute on a part along a dimension; "" if it can."""
    name = operator.dims[dim].name
    if operator.dims[dim].fixed or operator.dims[dim].combined:
        return f"`{operator.kind}` needs all of `{name}`, and reads a part of {said(found, value)}"
    for operand, lies in zip(operator.inputs, reads, strict=True):
        if lies.kind is LocalKind.WHOLE and operand.carries(dim) and not _follows(found, operand):
            if _is_repeated(found, operator, operand, dim):
                continue
            part, whole = said(found, value), said(found, operand.value)
            return f"`{operator.kind}` reads a part of {part} along `{name}`, and all of {whole}"
    return ""


def _is_repeated(found: Layouts, operator: Operator, operand: Operand, dim: int) -> bool:
    """Whether a value is repeated along a dimension: as often as there are parts, in the model's code. Its maker then
    computes a part, too."""
    maker = found.graph.makers.get(operand.value)
    if maker is None or maker.kind != "expand" or maker.name in found.cuts:
        return False
    axis = next(n for n, dims in enumerate(operand.axes) if dim in dims)
    made = maker.outputs[0].axes[axis]
    place = operand.axes[axis].index(dim)
    if place >= len(made) or any(o.carries(made[place]) for o in maker.inputs):
        return False
    found.cuts[maker.name] = made[place]
    found.made[operand.value] = LocalShare(LocalKind.CUT, axis, place)
    return True


def _follows(found: Layouts, operand: Operand) -> bool:
    """Whether a value is a mask or another constant, which the model's code makes in the sizes of what is there."""
    return operand.value in found.graph.makers and operand.value not in found.graph.learning
