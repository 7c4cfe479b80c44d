"""The backward walk: from the gradients of a function's outputs to those of its inputs.

The backward of an operator is linear in the gradient of its result. Along a coordinate by which the operator is not
split, all devices compute the same, so an addend of the gradient gives addends of its operands' gradients. Along its
own splits the operator needs the whole gradient.

In a backward in halves, the first half returns gradients of activations, the second leaves those of weights. The
gradient of a value that follows from weights alone belongs to the second half, even if an operator reads it together
with a value that follows from data. Conversions that backward gathers again must be gathered by all devices of the
group, at the same time.

A mistake ends nothing: `facts` collects it as a failure, and the walk goes on.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import assert_never

from ssdsl.ir.comm import AllGather, Exchange, Step
from ssdsl.ir.function import (
    Backward,
    Conversion,
    Function,
    Instr,
    OpPart,
    Section,
    Side,
    Write,
    reads_of,
    results_of,
)
from ssdsl.ir.layout import Submesh
from ssdsl.ir.value import Name, Time, Var
from ssdsl.prove.facts import Alike, ProofFacts, TypedFunction
from ssdsl.prove.failures import Rule, Wrong
from ssdsl.prove.functions.flow import Flow, Gradients
from ssdsl.prove.types.local import Axes, Local, of_type
from ssdsl.prove.types.steps import after
from ssdsl.text.source import Span


def backward(facts: ProofFacts, typed: TypedFunction, flow: Flow) -> dict[Name, Local]:
    """The gradients of a function's values. Also notes those of its inputs in `flow`, for the functions that made them:
    the readers of a function's outputs must be walked before the function."""
    function = typed.function
    walk = _Walk(facts, typed, axes=function.submesh.axes)
    for name in dict.fromkeys(typed.slots.values()):
        for gradient, who in flow.returned.get((function.number, name), ()):
            walk.add(name, gradient, who)
    own = (loss for loss in facts.program.losses if loss.function == function.number and loss.name in typed.types)
    for loss in own if facts.program.trains else ():
        walk.add(loss.name, Local(typed.types[loss.name].digits), "the loss")
    for output in function.outputs:
        if output.name in walk.gradients and not output.gradient:
            facts.fail(Rule.NO_GRADIENT, walk.where, output.name, "a gradient that comes back", "none")
    for section, alike in reversed(tuple(zip(function.sections, typed.sections, strict=True))):
        walk.section(section, alike, flow.walked_back)
    for given in function.inputs:
        arrived = walk.finished(given.var)
        if given.gradient != (arrived is not None):
            had = f"gradient: {given.gradient}"
            facts.fail(Rule.NO_GRADIENT, walk.where, given.var.name, arrived is not None, had)
        if arrived is not None:
            try:
                flow.give_back(given, function, arrived)
            except Wrong as wrong:
                facts.fail_with(wrong, f"{walk.where}, backward", given.var.name, function.submesh.mesh.span)
    for parameter in function.parameters:
        walk.finished(parameter.var)
    _check_kind(facts, function, any(p.var.name in walk.gradients for p in function.parameters))
    return walk.gradients


def _check_kind(facts: ProofFacts, function: Function, has_weight_gradients: bool) -> None:
    """Adds a failure unless `function.backward` fits: a backward runs if a result has a gradient, and it is DGRAD, a
    first half alone, only if no weight has one."""
    learns = any(facts.learns(v.name) for op in function.operators() for v in op.results)
    match function.backward:
        case Backward.NONE:
            fits = not learns
        case Backward.WHOLE | Backward.HALVES:
            fits = learns
        case Backward.DGRAD:
            fits = learns and not has_weight_gradients
        case _:
            assert_never(function.backward)
    if not fits:
        wanted = "a backward" if learns else "no backward"
        facts.fail(
            Rule.BACKWARD,
            f"function `{function.name}`",
            "",
            wanted,
            function.backward.value,
            function.submesh.mesh.span,
        )


@dataclass(slots=True)
class _Walk:
    """The gradients of one function's values so far, and for each the first reader that gave an addend."""

    facts: ProofFacts
    typed: TypedFunction
    gradients: dict[Name, Local] = field(default_factory=dict)
    givers: dict[Name, str] = field(default_factory=dict)
    axes: Axes = ()

    @property
    def where(self) -> str:
        return f"function `{self.typed.function.name}`"

    @property
    def submesh(self) -> Submesh:
        return self.typed.function.submesh

    def add(self, name: Name, gradient: Local, who: str, span: Span | None = None) -> None:
        """Adds an addend to a value's gradient, and a failure unless it has the value's region and the type of earlier
        addends. Addends of one type have that type as their sum, so one of them stands for all."""
        fail, span = self.facts.fail, span or self.submesh.mesh.span
        value = self.typed.types.get(name)
        if value is None:
            return
        if gradient.digits != value.digits:
            fail(Rule.RESULT, f"{self.where}, backward of {who}", name, Local(value.digits), gradient, span)
            return
        known = self.gradients.setdefault(name, gradient)
        first = self.givers.setdefault(name, who)
        if known != gradient:
            fail(Rule.UNLIKE, f"{self.where}, backward", name, f"{known} from {first}", f"{gradient} from {who}", span)

    def finished(self, var: Var, span: Span | None = None) -> Local | None:
        """The gradient of a value that has its last addend; None if no reader gave one. Adds a failure unless the
        program writes the same type at the value, or none."""
        fail, span = self.facts.fail, span or self.submesh.mesh.span
        gradient = self.gradients.get(var.name)
        if (gradient is not None) != (var.gradient is not None):
            had = "gradient" if var.gradient is not None else "none"
            fail(Rule.NO_GRADIENT, f"{self.where}, backward", var.name, gradient or "none", had, span)
        elif gradient is not None and var.gradient is not None:
            try:
                written = of_type(var.gradient, self.axes)
                if written != gradient:
                    fail(Rule.GRADIENT, f"{self.where}, backward", var.name, gradient, written, span)
            except Wrong as wrong:
                self.facts.fail_with(wrong, f"{self.where}, backward", var.name, span)
        return gradient

    # -- sections ----------------------------------------------------------------------------------------------------

    def section(self, section: Section, alike: Alike, walked: dict[int, tuple[Gradients, Gradients]]) -> None:
        """Walks a section. If one of its class was walked before without a failure, and began with equal gradients, its
        results are copied. `walked` has the gradients before and after, by the number of the class."""
        number, before = alike.number, len(self.facts.failures)
        given = tuple(map(self.gradients.get, alike.names))
        if number in walked and walked[number][0] == given:
            found = zip(alike.names, walked[number][1], strict=True)
            self.gradients.update((name, gradient) for name, gradient in found if gradient is not None)
            return
        for instr in reversed(section.body):
            self.instruction(instr)
        if number is not None and len(self.facts.failures) == before:
            walked.setdefault(number, (given, tuple(map(self.gradients.get, alike.names))))

    # -- instructions ------------------------------------------------------------------------------------------------

    def instruction(self, instr: Instr) -> None:
        """Derives the gradients of what an instruction reads from those of its results."""
        match instr:
            case OpPart():
                self.operator(instr)
            case Conversion():
                self.converted(instr)
            case Write():
                pass  # a buffer has no gradient
            case _:
                assert_never(instr)

    def converted(self, instr: Conversion) -> None:
        """Adds the gradient of a conversion's result, converted back, to that of its source."""
        gradient = self.finished(instr.result)
        if gradient is None:
            return
        who = f"reshard to {instr.result.name}"
        try:
            gradient = after(
                instr.backward, gradient, self.facts.shape(instr.source.value), self.axes, is_gradient=True
            )
            for step in instr.forward:
                gradient = self.taken_back(instr, step, gradient, who) if step.in_time else gradient
        except Wrong as wrong:
            self.facts.fail_with(wrong, f"{self.where}, backward of {who}", instr.source, self.submesh.mesh.span)
            return
        self.add(instr.source, gradient, who)

    def taken_back(self, instr: Conversion, step: Step, gradient: Local, who: str) -> Local:
        """The gradient of the source of a step in time. If the step joined its part to earlier ones, these get their
        gradients too."""
        if isinstance(step, Exchange):
            for earlier in instr.also:
                part = self.typed.types.get(earlier, gradient)
                self.add(earlier, Local(part.digits, gradient.partial), who)
            return Local(self.typed.types[instr.source].digits, gradient.partial)
        time = Time(step.axes[0])
        if time in gradient.partial:
            raise Wrong(Rule.PARTIAL_GRADIENT, f"the gradient of one {time.name}", gradient)
        return gradient.freeing(time).owing(time)  # the other parts give zeros

    def operator(self, op: OpPart) -> None:
        """Checks the gradients of an operator's results, and adds those of its operands."""
        operator = self.facts.operators[op.operator]
        span = self.facts.span_of(op, self.submesh)
        found = [(v.name, self.finished(v, span)) for v in op.results if self.facts.learns(v.name)]
        gradients = [(name, g) for name, g in found if g is not None]
        for name, g in found:
            if g is None:
                self.facts.fail(Rule.NO_GRADIENT, f"{self.where}, backward", name, "a gradient", "none", span)
        part = self.typed.parts.get(op.operator)
        if part is None or not gradients:
            return
        # along its own splits an operator needs whole gradients; along other axes they may be addends of a sum, the
        # same for all its results: then those of its operands are addends too
        owed = gradients[0][1].partial
        where = f"{self.where}, backward of operator `{op.operator}`"
        for name, g in gradients:
            if g.partial & part.own:
                self.facts.fail(Rule.PARTIAL_GRADIENT, where, name, g.summed(*part.own), g, span)
                owed = owed - part.own
            elif g.partial != owed:
                self.facts.fail(Rule.UNLIKE, where, name, owed, g, span)
        for operand, read, need, returned in zip(operator.inputs, op.reads, part.reads, part.returned, strict=False):
            if self.facts.learns(Name(operand.value)):
                self.add(read, Local(need.digits, returned | owed), f"operator `{op.operator}`", span)


# -- backward in halves ------------------------------------------------------------------------------------------------


def check_halves(facts: ProofFacts, typed: TypedFunction) -> None:
    """Adds a failure for each operator with wrong sides of its operands, and for each output that is wrongly left for
    the second half, or wrongly not."""
    function = typed.function
    in_halves = function.backward in (Backward.HALVES, Backward.DGRAD)
    weights: set[Name] = {p.var.name for p in function.parameters}  # and all that follows from weights alone
    weights |= {p.var.name for p in function.prepared if p.var.name.value in facts.alone}
    where, span = f"function `{function.name}`", function.submesh.mesh.span
    for section in function.sections:
        for instr in section.body:
            follows = weights.issuperset(reads_of(instr))
            if follows:
                weights.update(v.name for v in results_of(instr))
            if not isinstance(instr, OpPart):
                continue
            sides = tuple(_side(typed, r, weights) for r in instr.reads)
            mixes = in_halves and not follows and Side.WEIGHT in sides
            if instr.sides != (sides if mixes else None):
                place = f"{where}, operator `{instr.operator}`"
                facts.fail(
                    Rule.SIDES,
                    place,
                    "",
                    _words(sides) if mixes else "none",
                    _words(instr.sides or ()),
                    facts.span_of(instr, function.submesh),
                )
            learns = any(facts.learns(v.name) for v in instr.results)
            if in_halves and follows and learns and section.recompute:
                # the recomputation would read copies of the weights, whose gradients are lost
                facts.fail(Rule.SIDES, where, "", "outside recomputed sections", f"operator `{instr.operator}`", span)
    for output in function.outputs:
        wanted = in_halves and output.name in weights and output.name in typed.graded
        if output.wgrad_only != wanted:
            facts.fail(Rule.SIDES, where, output.name, f"left for the second half: {wanted}", output.wgrad_only, span)


def _side(typed: TypedFunction, name: Name, weights: set[Name]) -> Side:
    if name not in typed.graded:
        return Side.FIXED
    return Side.WEIGHT if name in weights else Side.ACTIVATION


def _words(sides: tuple[Side, ...]) -> str:
    return ", ".join(s.value for s in sides) or "none"


# -- what backward makes again -----------------------------------------------------------------------------------------


def check_again(facts: ProofFacts, function: Function) -> None:
    """Adds a failure for each conversion marked `again` that backward may not repeat, and for each result of a section
    that the section may not make again for its readers."""
    unlike = {read for op in function.operators() if op.kernel.function for read in op.reads}
    for section, leaving in zip(function.sections, function.leaving(), strict=True):
        for name in section.again:
            if why := _wrong_result(facts, function, section, name, leaving, unlike):
                where = f"function `{function.name}`, section `{section.layer}`"
                wanted = "a result of a recomputed section, in a backward of one task"
                facts.fail(Rule.AGAIN, where, name, wanted, why, function.submesh.mesh.span)
        for instr in (i for i in section.body if isinstance(i, Conversion) and i.again and not _is_local(i)):
            why = "read by a kernel that may keep it on some devices alone" if instr.result.name in unlike else ""
            if why := why or _wrong(function, section, instr):
                where = f"function `{function.name}`, reshard to {instr.result.name}"
                wanted = "a gather by all devices, in a backward of one task"
                facts.fail(Rule.AGAIN, where, instr.source, wanted, why, function.submesh.mesh.span)


def _is_local(instr: Conversion) -> bool:
    """Whether a conversion joins parts in time that the device has: any device may repeat it by itself."""
    return bool(instr.forward) and all(isinstance(s, Exchange) and s.in_time for s in instr.forward)


def _wrong_result(
    facts: ProofFacts,
    function: Function,
    section: Section,
    name: Name,
    leaving: frozenset[Name],
    unlike: Collection[Name],
) -> str:
    """The reason why a section cannot make a result again when a reader's backward needs it; empty if it can. Backward
    reaches the section only after all readers that give the result a gradient."""
    if function.backward is not Backward.WHOLE:
        return f"a backward of kind {function.backward.value}"
    if not section.recompute:
        return "a section that is kept"
    if name not in leaving:
        return "no result of it"
    if name in unlike:
        return "read by a kernel that may keep it on some devices alone"
    return "" if facts.learns(name) else "no gradient"


def _only_moves(step: Step) -> bool:
    """Whether a step gives devices positions that others have, and adds nothing: its result is the same again."""
    return isinstance(step, AllGather) or (isinstance(step, Exchange) and not step.sums and not step.in_time)


def _wrong(function: Function, section: Section, instr: Conversion) -> str:
    if function.backward is not Backward.WHOLE:
        return f"a backward of kind {function.backward.value}"
    if section.recompute:
        return "a section that is recomputed"
    if instr.also or not instr.forward or not all(map(_only_moves, instr.forward)):
        return "other steps than gathers"
    return ""
