"""The gradients of a model's weights under a plan of transformers: complete, summed nowhere, or counted several times.

The `q_norm` of Qwen3 works on a device's own heads. So its weight's gradient on a device is an addend; with the style
`replicated_with_grad_allreduce` it is summed, with none it is not.
"""

from collections.abc import Mapping
from enum import StrEnum

from ssdsl.model.graph import Graph, Operand, Operator, Origin
from ssdsl.record import Record
from ssdsl.tp_plans.layouts import WHOLE, Layouts, LocalKind, LocalShare, Mistake, layouts
from ssdsl.tp_plans.matching import weight_style, wildcard
from ssdsl.tp_plans.styles import Leaves, Takes


class Sum(StrEnum):
    """What becomes of the gradient of a weight: all is `right`; or its addends are summed nowhere, or only some of
    them; or it is summed although each device has all of it; or a mistake elsewhere reaches it."""

    RIGHT = "right"
    MISSING = "missing"
    IN_PART = "missing in part"
    MANY = "too many"
    FOLLOWS = "follows"

    @property
    def is_missing(self) -> bool:
        return self in (Sum.MISSING, Sum.IN_PART)


class Meaning(Record):
    """What a plan of transformers makes of a model: the layouts of its weights, the sum of each gradient, and mistakes
    of the forward and of the backward."""

    weights: Mapping[str, LocalShare]
    sums: Mapping[str, Sum]
    cuts: Mapping[str, int]
    forward: tuple[Mistake, ...]
    backward: tuple[Mistake, ...]

    @property
    def is_right(self) -> bool:
        return not self.forward and all(found is Sum.RIGHT for found in self.sums.values())


def meaning(graph: Graph, plan: Mapping[str, str], devices: int = 2) -> Meaning:
    """What a plan, a style for each module or weight, makes of a model."""
    forward = layouts(graph, plan, devices)
    loss = forward.made.get(graph.loss, WHOLE)
    wrong = list(forward.mistakes)
    if loss.kind is not LocalKind.WHOLE:
        wrong.append(Mistake(".", f"the loss is {loss.kind}"))
    walk = _Backward(forward)
    for operator in reversed(graph.computing):
        walk.through(operator)
    weights = {v.name: forward.made[v.name] for v in graph.of(Origin.WEIGHT)}
    sums = {name: walk.sum_of(name) for name in weights if name in graph.learning}
    return Meaning(weights, sums, forward.cuts, _once(wrong), _once(walk.mistakes))


def _once(mistakes: list[Mistake]) -> tuple[Mistake, ...]:
    return tuple(dict.fromkeys(mistakes))


def together(found: list[LocalShare]) -> LocalShare:
    """The layout of the sum of gradients that several readers leave."""
    kinds = {lies.kind for lies in found}
    off = any(lies.off for lies in found)
    kind = kinds.pop() if len(kinds) == 1 else LocalKind.MIXED
    return LocalShare(kind, found[0].axis, found[0].factor, off) if found else WHOLE


class _Backward:
    """A walk from the loss to the weights. `given` has for each value what readers leave of its gradient: by the
    modules that the value leaves and enters on its way to them."""

    def __init__(self, forward: Layouts) -> None:
        self.forward, self.graph = forward, forward.graph
        self.given: dict[str, dict[tuple[tuple[str, ...], tuple[str, ...]], list[LocalShare]]] = {}
        self.mistakes: list[Mistake] = []

    def through(self, operator: Operator) -> None:
        """Adds what an operator leaves of the gradients of its operands."""
        outputs = [o for o in operator.outputs if o.value in self.given or o.value in self.graph.losses]
        if not outputs:
            return
        arriving = {o.value: self.arriving(o, operator) for o in outputs}
        for number, operand in enumerate(operator.inputs):
            if operand.value in self.graph.learning:
                left = self.leaving(operator, number, operand, arriving)
                self.given.setdefault(operand.value, {}).setdefault(
                    self.forward.crossed(operand.value, operator), []
                ).append(left)

    def arriving(self, operand: Operand, maker: Operator) -> LocalShare:
        """The gradient of a value at its maker: what its readers leave, through the modules in between."""
        if operand.value in self.graph.losses:
            return WHOLE
        at_end = dict[tuple[str, ...], list[LocalShare]]()
        for (left, entered), found in self.given.get(operand.value, {}).items():
            at_end.setdefault(left, []).append(self.before(entered, together(found)))
        found = [self.behind(left, self.sum_at(operand, maker, each), operand) for left, each in at_end.items()]
        return self.sum_at(operand, maker, found)

    def sum_at(self, operand: Operand, maker: Operator, found: list[LocalShare]) -> LocalShare:
        """The sum of what readers leave of the gradient of a value; some may be summed over the devices, some not."""
        lies = together(found)
        kinds = {each.kind for each in found}
        if lies.kind is LocalKind.MIXED and LocalKind.ADDEND in kinds and not lies.off and not self.is_joined(maker):
            where = self.readers_of_addends(operand)
            self.mistakes.append(
                Mistake(maker.module, f"of the gradient of its result, what {where} leaves is summed nowhere")
            )
        return lies

    def is_joined(self, maker: Operator) -> bool:
        """Whether a style sums the part of the gradient of a module's result that is not summed."""
        around = self.forward.around(maker.path)
        return any(self.forward.styled[path].leaves is Leaves.PART_SUMMED for path in around)

    def readers_of_addends(self, operand: Operand) -> str:
        """The modules that leave addends of the gradient of a value."""
        found = [
            wildcard(reader.module)
            for reader in self.graph.readers.get(operand.value, ())
            if any(
                lies.kind is LocalKind.ADDEND
                for lies in self.given[operand.value].get(self.forward.crossed(operand.value, reader), ())
            )
        ]
        return " and ".join(f"`{name}`" for name in dict.fromkeys(found))

    def before(self, entered: tuple[str, ...], lies: LocalShare) -> LocalShare:
        """The gradient in front of the modules that a value enters."""
        for path in reversed(entered):
            takes = self.forward.styled[path].takes
            if takes is Takes.SHARED and lies.kind is LocalKind.WHOLE:
                self.mistakes.append(Mistake(path, "sums a gradient that each device has whole"))
                lies = LocalShare(LocalKind.WHOLE, off=True)
            elif takes in (Takes.SHARED, Takes.WHOLE, Takes.SENT, Takes.CUTS):
                lies = LocalShare(
                    LocalKind.WHOLE, off=lies.off or (takes is Takes.SHARED and lies.kind is LocalKind.MIXED)
                )
            elif takes is Takes.DIVIDED:
                lies = LocalShare(LocalKind.ADDEND, off=lies.off or lies.kind is not LocalKind.WHOLE)
        return lies

    def behind(self, left: tuple[str, ...], lies: LocalShare, operand: Operand) -> LocalShare:
        """The gradient inside of the modules that a value leaves."""
        for path in reversed(left):
            leaves = self.forward.styled[path].leaves
            if leaves is Leaves.PART_SUMMED:
                if lies.kind is LocalKind.WHOLE:
                    self.mistakes.append(Mistake(path, "sums a part of a gradient that each device has whole"))
                lies = LocalShare(LocalKind.WHOLE, off=lies.off or lies.kind is LocalKind.WHOLE)
            elif leaves is Leaves.GATHERED:
                self.expect_whole(lies, path)
                made = self.forward.made[operand.value]
                lies = LocalShare(made.kind, made.axis, made.factor, lies.off or lies.kind is not LocalKind.WHOLE)
            elif leaves is Leaves.SUMMED:
                self.expect_whole(lies, path)
                lies = LocalShare(LocalKind.WHOLE, off=lies.off or lies.kind is not LocalKind.WHOLE)
        return lies

    def expect_whole(self, lies: LocalShare, path: str) -> None:
        """Adds a mistake if a gradient that a module takes for whole is none."""
        if lies.kind is not LocalKind.WHOLE and not lies.off:
            self.mistakes.append(Mistake(path, f"the gradient of its result is {lies.kind}, and summed nowhere"))

    def leaving(
        self, operator: Operator, number: int, operand: Operand, arriving: Mapping[str, LocalShare]
    ) -> LocalShare:
        """What an operator leaves of the gradient of an operand."""
        found = together([*arriving.values()])
        if any(self.forward.styled[p].takes is Takes.SENT for p in self.forward.around(operator.path)):
            return WHOLE
        if operator.name in self.forward.carried:
            off = found.off or found.kind is not LocalKind.WHOLE
            is_addend = operand.value in self.forward.carried[operator.name]
            return LocalShare(LocalKind.WHOLE if is_addend else LocalKind.ADDEND, off=off)
        dim = self.forward.cuts.get(operator.name)
        if dim is None:
            return found
        off = found.off
        for output in operator.outputs:
            wanted = LocalKind.CUT if output.carries(dim) else LocalKind.WHOLE
            if output.value in arriving and arriving[output.value].kind is not wanted:
                off = True
        for axis, dims in enumerate(operand.axes):
            if dim in dims:
                return LocalShare(LocalKind.CUT, axis, dims.index(dim), off)
        return LocalShare(LocalKind.WHOLE if operand.once and operator.summed(dim) else LocalKind.ADDEND, off=off)

    def sum_of(self, weight: str) -> Sum:
        """What becomes of the gradient of a weight."""
        found = [lies for each in self.given.get(weight, {}).values() for lies in each]
        if not found:
            return Sum.RIGHT
        lies = together(found)
        style = weight_style(self.forward.plan, weight)
        sums = style is not None and style.sums
        if lies.off:
            return Sum.FOLLOWS
        match lies.kind:
            case LocalKind.ADDEND:
                return Sum.RIGHT if sums else Sum.MISSING
            case LocalKind.MIXED:
                return Sum.IN_PART
            case LocalKind.WHOLE:
                return Sum.MANY if sums else Sum.RIGHT
            case LocalKind.CUT:
                return Sum.RIGHT
