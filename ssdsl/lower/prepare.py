"""What runs outside the blocks: constants once, data operators once per step, on every submesh that needs them."""

from dataclasses import dataclass, field

from ssdsl.cluster.link import Link
from ssdsl.lower.cuts import operand_layout, operand_shape, operator_cuts
from ssdsl.lower.layout import REPLICATE, Layout, Shape, Submesh
from ssdsl.lower.reshard import reshard
from ssdsl.lower.schedule import Conversion, Prepared
from ssdsl.model.graph import Operator, Origin, Stage
from ssdsl.plan.plan import Plan


@dataclass(slots=True)
class Draft:
    submesh: Submesh
    operators: dict[str, None] = field(default_factory=dict)
    reads: dict[str, tuple[str, ...]] = field(default_factory=dict)
    conversions: dict[tuple[str, Layout], Conversion] = field(default_factory=dict)
    layouts: dict[str, tuple[Layout, Shape]] = field(default_factory=dict)
    results: dict[str, None] = field(default_factory=dict)


class Preparation:
    """Collects, per submesh, what its blocks need of inputs, constants and data operators."""

    def __init__(self, plan: Plan, link: Link) -> None:
        self.plan, self.link = plan, link
        self.drafts: dict[Submesh, Draft] = {}
        self.producers = {
            o.value: op for op in plan.graph.operators if op.stage is not Stage.COMPUTE for o in op.outputs
        }

    def provide(self, submesh: Submesh, value: str, layout: Layout) -> str:
        """The name of a value, on a submesh, in the layout that a block needs (its digits in time not yet cut out)."""
        draft = self.drafts.setdefault(submesh, Draft(submesh))
        name = self._in_layout(draft, value, layout)
        draft.results[name] = None
        return name

    def prepared(self) -> tuple[Prepared, ...]:
        return tuple(
            Prepared(d.submesh, tuple(d.operators), d.reads, tuple(d.conversions.values()), tuple(d.results))
            for d in self.drafts.values()
        )

    def _in_layout(self, draft: Draft, value: str, layout: Layout) -> str:
        have, shape = self._layout(draft, value)
        if have == layout:
            return value
        key = (value, layout)
        if key not in draft.conversions:
            steps = reshard(have, layout, shape, draft.submesh.axes, 4, self.link)
            name = f"{value}@p{sum(v == value for v, _ in draft.conversions)}"
            draft.conversions[key] = Conversion(value, name, steps, ())
        return draft.conversions[key].result

    def _layout(self, draft: Draft, value: str) -> tuple[Layout, Shape]:
        if value not in draft.layouts:
            operator = self.producers.get(value)
            if operator is None or operator.stage is Stage.CONSTANT:
                if operator is not None:
                    self._constant(draft, operator)
                shape = Shape(self.plan.graph.values[value].sizes)
                draft.layouts[value] = (Layout((REPLICATE,) * len(draft.submesh.axes)), shape)
            else:
                self._data(draft, operator)
        return draft.layouts[value]

    def _constant(self, draft: Draft, operator: Operator) -> None:
        if operator.name in draft.operators:
            return
        for ref in constant_inputs(operator):
            if (producer := self.producers.get(ref)) is not None:
                self._constant(draft, producer)
            assert producer is not None or self.plan.graph.values[ref].origin is Origin.CONSTANT
        draft.operators[operator.name] = None

    def _data(self, draft: Draft, operator: Operator) -> None:
        axes = draft.submesh.axes
        here = frozenset(a for a, _ in axes)
        cuts = tuple(c for c in operator_cuts(operator, self.plan.indices.get(operator.name, ()), here) if c.in_space)
        needs = [(o.value, operand_layout(operator, cuts, o, axes, is_output=False).value) for o in operator.inputs]
        draft.reads[operator.name] = tuple(self._in_layout(draft, value, need) for value, need in needs)
        draft.operators[operator.name] = None
        for operand in operator.outputs:
            made = operand_layout(operator, cuts, operand, axes, is_output=True)
            draft.layouts[operand.value] = (made.value, operand_shape(operator, operand))


def constant_inputs(operator: Operator) -> list[str]:
    """The tensors that a constant operator reads; its operands carry no dimensions."""
    from ssdsl.model.call import refs_in

    return list(refs_in((operator.args, tuple(v for _, v in operator.kwargs))))
