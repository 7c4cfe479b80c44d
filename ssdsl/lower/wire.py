"""Wires the blocks: every operand gets the layout that its operator needs, by conversions planned once per distinct
need.

A value comes from the same block, from another block on the same devices, from other devices (a transfer), from a
weight's home, or from what was prepared (inputs, constants and data operators). Consumers with the same need share
one conversion, so that their gradients are summed before they travel.
"""

from dataclasses import dataclass, field, replace

from ssdsl.cluster.link import Link
from ssdsl.lower.blocks import Run
from ssdsl.lower.cuts import LINEAR, OperandLayout, OperatorCut, operand_layout, operand_shape, without
from ssdsl.lower.defer import with_partial
from ssdsl.lower.homes import Homes
from ssdsl.lower.layout import REPLICATE, Digit, Layout, Shape, Submesh, cut
from ssdsl.lower.prepare import Preparation
from ssdsl.lower.reshard import Step, reshard
from ssdsl.lower.schedule import Block, Combine, Conversion, Input, Output, Take, TimeIndex, Transfer, base
from ssdsl.lower.transfer import keep_boxes, plan_move
from ssdsl.model.graph import Operand, Operator, Origin
from ssdsl.plan.plan import Plan


@dataclass(slots=True)
class Draft:
    """A block while it is being wired."""

    number: int
    run: Run
    inputs: dict[str, Input] = field(default_factory=dict)
    outputs: dict[tuple[str, bool], Output] = field(default_factory=dict)
    conversions: dict[tuple[object, ...], Conversion] = field(default_factory=dict)
    reads: dict[str, tuple[str, ...]] = field(default_factory=dict)
    weights: dict[str, None] = field(default_factory=dict)
    received: dict[str, tuple[Layout, Layout]] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)

    def fresh(self, value: str) -> str:
        """A new name for a version of a value."""
        self.versions[value] = self.versions.get(value, 0) + 1
        return f"{value}@{self.versions[value]}"


@dataclass(slots=True)
class Producer:
    """Where a computed value comes from: its block, and what its operator leaves."""

    block: int
    operator: Operator
    operand: Operand
    layout: OperandLayout


class Wiring:
    """Walks the blocks in order; `blocks()` gives the result."""

    def __init__(
        self,
        plan: Plan,
        runs: list[Run],
        cuts: dict[str, tuple[OperatorCut, ...]],
        deferred: dict[str, frozenset[str]],
        link: Link,
    ) -> None:
        self.plan, self.cuts, self.deferred, self.link = plan, cuts, deferred, link
        self.drafts = [Draft(n, run) for n, run in enumerate(runs)]
        self.made: dict[str, Producer] = {}
        self.homes = Homes(plan, runs, cuts, deferred)
        self.preparation = Preparation(plan, link)
        self.transfers: dict[tuple[str, int], Transfer] = {}
        for draft in self.drafts:
            for operator in draft.run.operators:
                self._operator(draft, operator)

    def blocks(self) -> tuple[Block, ...]:
        """The blocks; one has a backward if the loss depends on it through differentiable values."""
        units = self._units()
        reached: set[int] = set()
        blocks = []
        for draft in reversed(self.drafts):
            block = self._finish(draft, units)
            if (self.plan.graph.loss, False) in draft.outputs or block.number in reached:
                reached |= {i.producer for i in block.inputs if i.differentiable}
                learns = any(self.plan.graph.values[w].differentiable for w in block.weights)
                block = replace(block, has_backward=learns or any(i.differentiable for i in block.inputs))
            blocks.append(block)
        return tuple(reversed(blocks))

    # -- one operator ------------------------------------------------------------------------------------------------

    def _operator(self, draft: Draft, operator: Operator) -> None:
        cuts, axes = self.cuts[operator.name], draft.run.submesh.axes
        partial = self.deferred.get(operator.name, frozenset())
        needs = [
            (o, with_partial(operand_layout(operator, cuts, o, axes, is_output=False), axes, partial))
            for o in operator.inputs
        ]
        draft.reads[operator.name] = tuple(self._source(draft, operator, o, need) for o, need in needs)
        for operand in operator.outputs:
            layout = with_partial(operand_layout(operator, cuts, operand, axes, is_output=True), axes, partial)
            self.made[operand.value] = Producer(draft.number, operator, operand, layout)
        if any(o.value == self.plan.graph.loss for o in operator.outputs):
            loss = self.plan.graph.loss
            draft.outputs[loss, False] = Output(loss, loss, True)

    def _source(self, draft: Draft, operator: Operator, operand: Operand, need: OperandLayout) -> str:
        value = self.plan.graph.values[operand.value]
        shape = operand_shape(operator, operand)
        if value.origin in (Origin.WEIGHT, Origin.BUFFER):
            draft.weights[value.name] = None
            home = self.homes.on(value.name, draft.run.submesh)
            gradient = home.gradient if value.differentiable else need.gradient
            return self._convert(draft, value.name, shape, home.layout, gradient, need, ())
        if operand.value not in self.made:
            name = self.preparation.provide(draft.run.submesh, value.name, need.value)
            return self._convert(draft, name, shape, need.value, need.gradient, need, ())
        producer = self.made[operand.value]
        if producer.block == draft.number:
            common = tuple(d for _, d, _ in need.time)
            have = producer.layout
            shared = replace(need, time=())
            return self._convert(draft, value.name, shape, have.value, have.gradient, shared, common)
        return self._from_block(draft, producer, value.name, shape, need)

    # -- values of other blocks --------------------------------------------------------------------------------------

    def _from_block(self, draft: Draft, producer: Producer, value: str, shape: Shape, need: OperandLayout) -> str:
        source = self.drafts[producer.block]
        differentiable = self.plan.graph.values[value].differentiable
        wanted = {(index, digit) for index, digit, _ in need.time}
        here = {index for index, _, _ in draft.run.time}
        shared = {i: d for i, d, _ in producer.layout.time if (i, d) in wanted and i in here}
        taken_over = {i for i in producer.layout.partial_time if self._takes_over(draft, i)}
        have, gradient = producer.layout.value, producer.layout.gradient
        if source.run.submesh == draft.run.submesh:
            source.outputs.setdefault((value, False), Output(value, value, differentiable))
        else:
            have, gradient = self._received(draft, source, producer, value, shape, need)
        if value not in draft.inputs:
            combines = self._combines(source, producer, have, shape, shared.keys() | taken_over)
            draft.inputs[value] = Input(value, producer.block, combines, differentiable)
        rest = replace(need, time=tuple(t for t in need.time if t[0] not in shared))
        return self._convert(draft, value, shape, have, gradient, rest, tuple(shared.values()))

    def _takes_over(self, draft: Draft, index: str) -> bool:
        """Whether the block's operators carry an index only as partial sums (see spread.py)."""
        carrying = [c for o in draft.run.operators for c in self.cuts[o.name] if c.index == index]
        return bool(carrying) and all(c.dim == LINEAR for c in carrying)

    def _combines(
        self, source: Draft, producer: Producer, have: Layout, shape: Shape, shared: set[str]
    ) -> tuple[Combine, ...]:
        """What makes the parts of a value one, along the indices in time that producer and consumer do not share."""
        digits = {index: digit for index, digit, _ in producer.layout.time}
        fixed = [*have.digits(), *digits.values()]
        combines = []
        for index, count, _ in source.run.time:
            if index in shared:
                continue
            digit = digits.get(index)
            if digit is not None:
                fixed.remove(digit)
            combines.append(Combine(index, count, cut(shape, digit, tuple(fixed)) if digit is not None else None))
        return tuple(combines)

    def _received(
        self, draft: Draft, source: Draft, producer: Producer, value: str, shape: Shape, need: OperandLayout
    ) -> tuple[Layout, Layout]:
        """The layout in which a value arrives from other devices: as its first consumer needs it."""
        if value not in draft.received:
            arrives = keep_boxes(need.value.summed(), shape, tuple(d for _, d, _ in producer.layout.time))
            gradient = Layout(tuple(p if isinstance(p, Digit) else REPLICATE for p in arrives.places))
            draft.received[value] = (arrives, gradient)
            output = self._completed(source, producer, value, shape)
            self._transfer(draft, source, producer, output, shape, arrives, gradient)
        return draft.received[value]

    def _completed(self, source: Draft, producer: Producer, value: str, shape: Shape) -> Output:
        if (value, True) not in source.outputs:
            name = value
            if producer.layout.value.is_partial:
                name = source.fresh(value)
                common = tuple(d for _, d, _ in producer.layout.time)
                have = without(producer.layout.value, common)
                steps = self._steps(have, have.summed(), shape.local(common), value, source.run.submesh)
                source.conversions["sent", value] = Conversion(value, name, steps, ())
            differentiable = self.plan.graph.values[value].differentiable
            source.outputs[value, True] = Output(value, name, differentiable, sent=True)
        return source.outputs[value, True]

    def _transfer(
        self,
        draft: Draft,
        source: Draft,
        producer: Producer,
        output: Output,
        shape: Shape,
        arrives: Layout,
        gradient: Layout,
    ) -> None:
        times = tuple(d for _, d, _ in producer.layout.time)
        part = shape.local(times)
        have = without(producer.layout.value.summed(), times)
        a, b = source.run.submesh, draft.run.submesh
        forward = plan_move(have, a, without(arrives, times), b, part)
        backward = None
        if output.differentiable:
            needed = without(producer.layout.gradient, times)
            backward = plan_move(without(gradient, times), b, needed, a, part)
        value = self.plan.graph.values[output.value]
        time = tuple(TimeIndex(*t) for t in source.run.time)
        number = len(self.transfers)
        self.transfers[output.value, draft.number] = Transfer(
            number, output.value, source.number, draft.number, a, b, forward, backward, value.dtype, time
        )

    # -- conversions -------------------------------------------------------------------------------------------------

    def _convert(
        self,
        draft: Draft,
        value: str,
        shape: Shape,
        have: Layout,
        gradient: Layout,
        need: OperandLayout,
        common: tuple[Digit, ...],
    ) -> str:
        """The name under which a block has a value in the layout that an operator needs."""
        original = base(value)
        differentiable = self.plan.graph.values[original].differentiable
        have, gradient = without(have, common), without(gradient, common)
        want, produced = without(need.value, common), without(need.gradient, common)
        if have == want and (gradient == produced or not differentiable) and not need.time:
            return value
        key = (value, want, produced if differentiable else None, tuple(i for i, _, _ in need.time))
        if key not in draft.conversions:
            part = shape.local(common)
            submesh = draft.run.submesh
            forward = self._steps(have, want, part, original, submesh)
            backward = self._steps(produced, gradient, part, original, submesh) if differentiable else ()
            takes = self._takes(want, need, part, common)
            draft.conversions[key] = Conversion(value, draft.fresh(original), forward, backward, takes)
        return draft.conversions[key].result

    def _takes(self, layout: Layout, need: OperandLayout, part: Shape, common: tuple[Digit, ...]) -> tuple[Take, ...]:
        fixed = list(layout.digits())
        takes = []
        for index, digit, _ in need.time:
            digit = without(Layout((digit,)), common).digits()[0]
            takes.append(Take(index, cut(part, digit, tuple(fixed))))
            fixed.append(digit)
        return tuple(takes)

    def _steps(self, before: Layout, after: Layout, shape: Shape, value: str, submesh: Submesh) -> tuple[Step, ...]:
        itemsize = self.plan.graph.values[value].itemsize
        return reshard(before, after, shape, submesh.axes, itemsize, self.link)

    # -- the result --------------------------------------------------------------------------------------------------

    def _units(self) -> dict[str, int]:
        """The recompute unit of each operator; a later statement does not change an earlier one's units."""
        units: dict[str, int] = {}
        count = 0
        for recompute in self.plan.recomputes:
            for unit in recompute.units:
                for name in sorted(unit):
                    units.setdefault(name, count)
                count += 1
        return units

    def _finish(self, draft: Draft, units: dict[str, int]) -> Block:
        names = tuple(o.name for o in draft.run.operators)
        return Block(
            draft.number,
            f"block{draft.number}",
            draft.run.submesh,
            tuple(TimeIndex(*t) for t in draft.run.time),
            names,
            tuple(draft.inputs.values()),
            tuple({o.name: o for o in draft.outputs.values()}.values()),
            tuple(draft.conversions.values()),
            draft.reads,
            {n: units[n] for n in names if n in units},
            False,
            tuple(draft.weights),
            draft.run.halves,
            draft.run.stage,
        )
