"""Finds the parts of the model and of the plan behind an instruction, which a role's file says beside its lines.

A function of the file is called for several layers. So layers are written with stars, `transformer.h.*.attn.c_proj`,
and a rank that waits or fails knows the layer that it runs.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ssdsl.ir.comm import travels
from ssdsl.ir.function import Conversion, Function, Instr, OpPart
from ssdsl.ir.param import FlatParam
from ssdsl.ir.program import Program
from ssdsl.model.graph import Operator
from ssdsl.runtime.program.table import OperatorSite, starred
from ssdsl.text.source import Span

WHOLE = ("int64", "int32")
MANY = 3  # of different texts, for the layers of one function


@dataclass
class Origins:
    """Finds the operators and the statements that an instruction, a message or a flat parameter comes from."""

    program: Program
    _spans: dict[Span, str] = field(default_factory=dict)

    def comment(self, instr: Instr, layer: str = "") -> tuple[str, str]:
        """The value that an instruction communicates, and the statement that has it do so; empty if it does not
        communicate, or no statement does.

        `transformer.h.*.attn.c_proj addmm`, `megatron.ssp:15: split model by heads into tp`
        """
        match instr:
            case Conversion():
                axes = {a for step in (*instr.forward, *instr.backward) if travels(step) for a in step.axes}
                value = instr.source.value
                operators = [*self._made_by(value), *self._read_by(value)]
            case OpPart():
                axes, value = set(instr.kernel.axes), instr.results[0].name.value if instr.results else ""
                operators = [*self._made_by(value)]
            case _:
                axes, value, operators = set(), "", []
        return (self.value(value, layer), self._cut_by(operators, axes)) if axes else ("", "")

    def operator(self, part: OpPart, layer: str = "") -> OperatorSite:
        """An operator in a function that is called for a layer: the line of the model that calls it, and the statement
        that cuts or places it."""
        operator = self.program.graph.by_name[part.operator]
        indices = self.program.plan.of(operator.name).indices
        plan = self.said(indices[0].span) if indices else self._place(operator.name)
        module = _within(operator.path, layer)
        return OperatorSite(operator.kind, module, operator.source, plan, self._looks_up(part))

    def _looks_up(self, part: OpPart) -> bool:
        """Whether an operator reads integers, which may be out of range: tokens, classes."""
        values = self.program.graph.values
        is_local = not part.kernel.axes
        return is_local and any(values[r.value].dtype in WHOLE for r in part.reads if r.value in values)

    def statement(self, instr: Instr) -> str:
        """The statement whose axis an instruction communicates along; empty if it does not communicate."""
        return self.comment(instr)[1]

    def statements(self, instrs: Iterable[Instr]) -> list[str]:
        """The statements that cut or place operators, in the order of the plan."""
        plans = [self.program.plan.of(name) for name in {i.operator: i for i in instrs if isinstance(i, OpPart)}]
        spans = {index.span for plan in plans for index in plan.indices}
        spans |= {plan.place.span for plan in plans if plan.place is not None}
        return [*dict.fromkeys(map(self.said, sorted(spans, key=lambda span: (span.source.name, span.start))))]

    def message(self, consumer: Function) -> str:
        """The statement that places the reader of a message."""
        return next(filter(None, (self._place(op.operator) for op in consumer.operators())), "")

    def flat(self, flat: FlatParam) -> str:
        """The statement that makes ranks exchange a flat parameter: it shards it, or splits or places its readers."""
        for shard in self.program.plan.state.shards:
            if not shard.weights.isdisjoint(flat.weights):
                return self.said(shard.span)
        axes = {a for step in flat.completion.steps for a in getattr(step, "axes", ())}
        readers = [o for w in flat.weights[:1] for o in self._read_by(w)]
        return self._cut_by(readers, axes) or next((self._place(o.name) for o in readers), "")

    def said(self, span: Span) -> str:
        """A statement with its place: `megatron.ssp:15: split model by heads into tp`."""
        if span not in self._spans:
            line, _ = span.source.line_column(span.start)
            text = span.source.line(line).partition(" #")[0].strip()
            self._spans[span] = f"{Path(span.source.name).name}:{line}: {text}"
        return self._spans[span]

    def _place(self, operator: str) -> str:
        placement = self.program.plan.of(operator).place
        return self.said(placement.span) if placement is not None else ""

    def _cut_by(self, operators: Iterable[Operator], axes: set[str]) -> str:
        """The `split` along one of the axes that applies to one of the operators."""
        spans = (i.span for o in operators for i in self.program.plan.of(o.name).indices if i.name in axes)
        return next((self.said(span) for span in spans), "")

    def value(self, value: str, layer: str = "") -> str:
        """The words for a value: the path and the kind of the operator that makes it."""
        made = next(self._made_by(value), None)
        return f"{_within(made.path, layer)} {made.kind}".strip() if made is not None else "an input"

    def _made_by(self, value: str) -> Iterator[Operator]:
        if (maker := self.program.graph.makers.get(value)) is not None:
            yield maker

    def _read_by(self, value: str) -> tuple[Operator, ...]:
        return self.program.graph.readers.get(value, ())


def _within(path: str, layer: str) -> str:
    """The path of a module, with stars for the numbers of the layer that it is in."""
    return f"{starred(layer)}{path.removeprefix(layer)}" if f"{path}.".startswith(f"{layer}.") else path


def either(texts: Iterable[str]) -> str:
    """One text for all layers of a function, which mostly have the same.

    >>> either(["plan.ssp:3: split a by heads into tp", "plan.ssp:4: split b by heads into tp"])
    'plan.ssp:3: split a by heads into tp or plan.ssp:4: split b by heads into tp'
    """
    several = [*dict.fromkeys(filter(None, texts))]
    return " or ".join([*several[:MANY], *([f"{len(several) - MANY} more"] if several[MANY:] else [])])
