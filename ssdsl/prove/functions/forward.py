"""The forward walk: derives the types of a function's values from those of its inputs, instruction by instruction."""

import math
from collections.abc import Callable
from functools import partial
from typing import assert_never

from ssdsl.ir.function import (
    Conversion,
    Function,
    Instr,
    OpPart,
    Parameter,
    Prepared,
    Section,
    Write,
)
from ssdsl.ir.layout import Submesh
from ssdsl.ir.value import Axis, Name, TimeIndex, Type, Var
from ssdsl.model.graph import Operator, Origin
from ssdsl.prove.facts import Alike, Given, ProofFacts, TypedFunction, Walked
from ssdsl.prove.failures import Rule, Wrong
from ssdsl.prove.functions.flow import Flow, check_in_time
from ssdsl.prove.types.kernels import check_first, check_kernel
from ssdsl.prove.types.local import Local, fixed_by, local_sizes, of_type
from ssdsl.prove.types.operators import OperatorPart, part_of, shape_of
from ssdsl.prove.types.rows import check_rows
from ssdsl.prove.types.steps import after
from ssdsl.text.source import Span


def forward(facts: ProofFacts, function: Function, prologue: dict[Name, Local], flow: Flow) -> None:
    """Adds the typed function to `flow`. Where a derived type differs from the written one, it adds a failure; where a
    type cannot be derived, the walk goes on with the written one."""
    typed = TypedFunction(function, flow.classes.sections(function))
    walk = Walk(facts, function.submesh, function.time, typed, f"function `{function.name}`")
    walk.check_time()
    for given in function.inputs:
        walk.enters(given.var, partial(flow.entering, given, function))
    for prepared in function.prepared:
        walk.enters(prepared.var, partial(_prepared, prepared, prologue))
    for parameter in function.parameters:
        walk.enters(parameter.var, partial(_parameter, facts, parameter, function))
    for section, alike in zip(function.sections, typed.sections, strict=True):
        walk.section(section, alike, flow.walked)
    for output in function.outputs:
        if output.name not in typed.types:
            facts.fail(Rule.UNKNOWN, walk.where, output.name, "a value of the function", output.slot)
            continue
        if output.slot in typed.slots:
            facts.fail(Rule.TWICE, walk.where, output.name, "one value for each slot", output.slot)
        typed.slots[output.slot] = output.name
        if output.gradient and not facts.learns(output.name):
            facts.fail(Rule.NO_GRADIENT, walk.where, output.name, "no gradient", "one")
    flow.typed[function.number] = typed
    flow.check_earlier(function)


def _prepared(prepared: Prepared, prologue: dict[Name, Local]) -> Local:
    if prepared.source not in prologue or prepared.source.value != prepared.var.name.value:
        raise Wrong(Rule.PREPARED, f"{prepared.var.name.value}, made by the prologue", prepared.source)
    return prologue[prepared.source]


def _parameter(facts: ProofFacts, parameter: Parameter, function: Function) -> Local:
    weight = parameter.var.name.value
    param = facts.params.get((weight, function.submesh))
    if param is None or facts.graph.values[weight].origin not in (Origin.WEIGHT, Origin.BUFFER):
        raise Wrong(Rule.PARAM, f"a weight that lives on {function.submesh}", weight)
    return of_type(Type(param.layout), function.submesh.axes)


class Walk:
    """Infers types forward and compares them with the written ones."""

    def __init__(
        self, facts: ProofFacts, submesh: Submesh, time: tuple[TimeIndex, ...], typed: TypedFunction | None, where: str
    ) -> None:
        self.facts, self.submesh, self.time, self.where = facts, submesh, time, where
        self.types: dict[Name, Local] = {} if typed is None else typed.types
        self.parts: dict[str, OperatorPart] = {} if typed is None else typed.parts
        self.graded: set[Name] = set() if typed is None else typed.graded
        self.axes = submesh.axes
        self.function = None if typed is None else typed.function
        self.sizes = dict(self.axes)
        self.index = {t.name: t for t in time}

    def check_time(self) -> None:
        """Adds a failure if an index in time has the name of another one, or of an axis."""
        names = [t.name for t in self.time] + [a for a, _ in self.axes]
        if len(set(names)) != len(names):
            self.facts.fail(Rule.TWICE, self.where, "", "each index once, none of them an axis", names)

    # -- values ------------------------------------------------------------------------------------------------------

    def enters(self, var: Var, infer: Callable[[], Local]) -> None:
        """Defines a value that enters the function; `infer` derives its type."""
        local: Local | None = None
        try:
            local = infer()
        except Wrong as wrong:
            self.facts.fail_with(wrong, self.where, var.name, self.submesh.mesh.span)
        self._define(var, local, self.where, self.submesh.mesh.span)

    def _define(self, var: Var, local: Local | None, where: str, span: Span | None) -> None:
        """Records a value's type, and compares it with the one that is written. `local` is None if the inference has
        failed: then the written type is taken."""
        fail = self.facts.fail
        if var.name in self.types:
            fail(Rule.TWICE, where, var.name, "a name of its own", var.name, span)
        try:
            written = of_type(var.type, self.axes)
            if local is not None and written != local:
                fail(Rule.ANNOTATED, where, var.name, local, written, self._between(var.name, written, local) or span)
            self._check_form(var, written if local is None else local, where)
        except Wrong as wrong:
            self.facts.fail_with(wrong, where, var.name, span)
            if local is None:
                return
            written = local
        self.types[var.name] = written if local is None else local
        if var.gradient is not None:
            self.graded.add(var.name)
            if not self.facts.learns(var.name):
                fail(Rule.NO_GRADIENT, where, var.name, "no gradient", "one", span)

    def _check_form(self, var: Var, local: Local, where: str) -> None:
        shape = self.facts.shape(var.name.value)
        sizes = local_sizes(shape, local)
        written = tuple(s.known if not s.uneven else None for s in var.shape)
        uneven = {varying for s in var.shape for varying in s.uneven}
        wanted = {(c, d.counts) for c, d in fixed_by(local, self.axes) if len(set(d.counts)) > 1}
        if written != sizes or uneven != wanted:
            self.facts.fail(Rule.SIZE, where, var.name, sizes, " x ".join(map(str, var.shape)))
        if var.dtype != self.facts.graph.values[var.name.value].dtype:
            dtype = self.facts.graph.values[var.name.value].dtype
            self.facts.fail(Rule.DTYPE, where, var.name, dtype, var.dtype)

    def _between(self, name: Name, a: Local, b: Local) -> Span | None:
        """The statement behind a coordinate in which two types differ: of the operator that makes the value, if
        possible."""
        apart = sorted({c for c, _ in a.digits ^ b.digits} | (a.partial ^ b.partial), key=str)
        every = [] if self.function is None else [*self.function.operators()]
        own, plan = [op for op in every if name.value in {v.name.value for v in op.results}], self.facts.program.plan
        said = (plan.said(op.operator, c.name) for ops in (own, every) for c in apart for op in ops)
        return next((span for span in said if span is not None), None)

    # -- sections ----------------------------------------------------------------------------------------------------

    def section(self, section: Section, alike: Alike, walked: dict[int, Walked]) -> None:
        """Walks a section. If one of its class was walked before without a failure, and from equal types, the results
        are copied."""
        number, before = alike.number, len(self.facts.failures)
        if number in walked and self._is_repeated(walked[number], alike):
            return
        entering = self._of(alike)
        for instr in section.body:
            self.instruction(instr)
        if number is not None and len(self.facts.failures) == before:
            parts = tuple(self.parts[name] for name in alike.operators)
            walked.setdefault(number, Walked(entering, self._of(alike), parts))

    def _of(self, alike: Alike) -> tuple[Given, ...]:
        return tuple((self.types.get(name), name in self.graded) for name in alike.names)

    def _is_repeated(self, walked: Walked, alike: Alike) -> bool:
        if self._of(alike) != walked.entering:
            return False
        for name, (local, is_graded) in zip(alike.names, walked.leaving, strict=True):
            if local is not None:
                self.types[name] = local
            if is_graded:
                self.graded.add(name)
        self.parts.update(zip(alike.operators, walked.parts, strict=True))
        return True

    # -- instructions ------------------------------------------------------------------------------------------------

    def instruction(self, instr: Instr) -> None:
        """Derives the types of an instruction's results, and compares them with the written ones."""
        match instr:
            case OpPart():
                self._operator(instr)
            case Conversion():
                self._converted(instr)
            case Write():
                if instr.source not in self.types:
                    self.facts.fail(Rule.UNREADY, f"{self.where}, write of {instr.buffer}", instr.source, "made before")
            case _:
                assert_never(instr)

    def _converted(self, instr: Conversion) -> None:
        local: Local | None = None
        source, where = instr.source, f"{self.where}, reshard to {instr.result.name}"
        if source not in self.types:
            self.facts.fail(Rule.UNREADY, where, source, "a value made before", "none", self.submesh.mesh.span)
        elif source.value != instr.result.name.value:
            self.facts.fail(Rule.UNKNOWN, where, instr.result.name, f"another {source.value}", instr.result.name)
        else:
            try:
                shape = self.facts.shape(source.value)
                if any(step.in_time for step in instr.forward):
                    check_in_time(self.facts.graph, instr, self.types, shape)
                local = after(instr.forward, self.types[source], shape, self.axes, self.time)
                check_rows(self.facts.graph, instr, self.types, local)
            except Wrong as wrong:
                self.facts.fail_with(wrong, where, source, self.submesh.mesh.span)
        self._define(instr.result, local, where, self.submesh.mesh.span)

    def _operator(self, op: OpPart) -> None:
        operator = self.facts.operators[op.operator]
        where = f"{self.where}, operator `{op.operator}`"
        fail, span = self.facts.fail, self.facts.span_of(op, self.submesh)
        locals_: tuple[Local | None, ...] = (None,) * len(op.results)
        try:
            self._check_splits(op)
            self._check_operands(operator, op)
            part = part_of(operator, op.splits, self.facts.read, self.sizes)
            check_kernel(operator, op, self.axes)
            check_first(operator, op)
            locals_, self.parts[op.operator] = part.results, part
        except Wrong as wrong:
            self.facts.fail_with(wrong, where, "", span)
        else:
            for read, need in zip(op.reads, part.reads, strict=True):
                have = self.types.get(read)
                if have is None:
                    fail(Rule.UNREADY, where, read, need, "nothing", span)
                elif have != need:
                    fail(Rule.READ, where, read, need, have, self._between(read, need, have) or span)
        for var, local in zip(op.results, locals_, strict=True):
            self._define(var, local, where, span)

    def _check_splits(self, op: OpPart) -> None:
        """Raises Wrong unless each split has a coordinate of the function and as many parts as it: so all parts run."""
        for split in op.splits:
            name, sizes = split.coordinate.name, split.digit.sizes
            if isinstance(split.coordinate, Axis):
                names = split.coordinate.names  # of several axes the last is innermost, as groups number their devices
                fits = [*names] == [axis for axis, _ in self.axes if axis in names]
                fits = fits and math.prod(self.sizes[axis] for axis in names) == split.digit.parts
                fits = fits and (len(names) == 1 if sizes is None else len(sizes) == split.digit.parts)
            else:
                index = self.index.get(name)
                fits = index is not None and (index.parts, index.sizes) == (split.digit.parts, sizes)
            if not fits:
                there = [*self.axes, *((t.name, t.sizes or t.parts) for t in self.time)]
                raise Wrong(Rule.COORDINATE, f"one of {there}", f"{name} of {sizes or split.digit.parts} parts")

    def _check_operands(self, operator: Operator, op: OpPart) -> None:
        values = self.facts.graph.values
        for operands, names in (
            (operator.inputs, [r.value for r in op.reads]),
            (operator.outputs, [v.name.value for v in op.results]),
        ):
            if [o.value for o in operands] != names:
                raise Wrong(Rule.UNKNOWN, [o.value for o in operands], names)
        for operand in (*operator.inputs, *operator.outputs):
            if shape_of(operator, operand) != values[operand.value].sizes:
                raise Wrong(Rule.SIZE, values[operand.value].sizes, shape_of(operator, operand))
