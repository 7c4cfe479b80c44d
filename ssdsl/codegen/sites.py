"""Maps lines of a role's file to the plan and the model, for reports of a rank that waits or fails there.

A place is a function of the file, the layer it is called for, and the left-hand side of a line: `transformer_h`,
`transformer.h.0`, `addmm_3`. So the code needs no numbers, and layers that share a function have places of their own.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ssdsl.ir.comm import travels
from ssdsl.ir.function import Conversion, Function, Instr, OpPart
from ssdsl.ir.param import FlatParam
from ssdsl.ir.program import Program
from ssdsl.model.graph import Operator
from ssdsl.runtime.program.table import FunctionSites, OperatorSite, Site
from ssdsl.text.source import Span

WHOLE = ("int64", "int32")
Place = tuple[str, str, str]  # a function of the file, the layer, the left-hand side of a line


@dataclass
class Origins:
    """Finds the statements of a program's plan that caused its communication."""

    program: Program
    _spans: dict[Span, str] = field(default_factory=dict)

    def sites(self, places: Mapping[Place, Instr]) -> tuple[Site, ...]:
        """The sites of a role at which ranks wait for each other."""
        return tuple(found for place, instr in places.items() if (found := self._site(instr, place)))

    def operators(self, places: Mapping[Place, Instr]) -> tuple[FunctionSites, ...]:
        """The operators in the lines of a role's file, by the functions that they are in."""
        bodies: dict[tuple[str, str], list[OperatorSite]] = {}
        for (function, layer, line), instr in places.items():
            if isinstance(instr, OpPart):
                bodies.setdefault((function, layer), []).append(self._operator(instr, layer, line))
        layers: dict[tuple[str, tuple[OperatorSite, ...]], list[str]] = {}
        for (function, layer), operators in bodies.items():
            layers.setdefault((function, tuple(operators)), []).append(layer)
        return tuple(FunctionSites(function, tuple(named), body) for (function, body), named in layers.items())

    def _site(self, instr: Instr, place: Place = ("", "", "")) -> Site | None:
        match instr:
            case Conversion():
                axes = {a for step in (*instr.forward, *instr.backward) if travels(step) for a in step.axes}
                value = instr.source.value
                operators = [*self._made_by(value), *self._read_by(value)]
            case OpPart() if instr.kernel.axes:
                axes, value = set(instr.kernel.axes), instr.results[0].name.value
                operators = [*self._made_by(value)]
            case _:
                return None
        return Site(*place, value, self.value(value), self._cut_by(operators, axes)) if axes else None

    def _operator(self, part: OpPart, layer: str, line: str) -> OperatorSite:
        """The site of an operator: the line of the model that calls it, and the statement that cuts or places it."""
        operator = self.program.graph.by_name[part.operator]
        indices = self.program.plan.of(operator.name).indices
        plan = self.said(indices[0].span) if indices else self._place(operator.name)
        module = operator.path
        if layer and f"{module}.".startswith(f"{layer}."):
            module = f".{module.removeprefix(layer).removeprefix('.')}"
        return OperatorSite(line, operator.kind, module, operator.source, plan, self._looks_up(part))

    def _looks_up(self, part: OpPart) -> bool:
        """Whether an operator reads integers, which may be out of range: tokens, classes."""
        values = self.program.graph.values
        is_local = not part.kernel.axes
        return is_local and any(values[r.value].dtype in WHOLE for r in part.reads if r.value in values)

    def statement(self, instr: Instr) -> str:
        """The statement whose axis an instruction communicates along; empty if it does not communicate."""
        site = self._site(instr)
        return site.plan if site is not None else ""

    def message(self, consumer: Function) -> str:
        """The statement that places the reader of a message."""
        return next(filter(None, (self._place(op.operator) for op in consumer.operators())), "")

    def flat(self, flat: FlatParam) -> str:
        """The statement that makes ranks exchange a flat parameter: it shards it, or splits or places its readers."""
        for shard in self.program.plan.shards:
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

    def value(self, value: str) -> str:
        """The words for a value: the path and the kind of the operator that makes it."""
        made = next(self._made_by(value), None)
        return f"{made.path} {made.kind}".strip() if made is not None else "an input"

    def _made_by(self, value: str) -> Iterator[Operator]:
        if (maker := self.program.graph.makers.get(value)) is not None:
            yield maker

    def _read_by(self, value: str) -> tuple[Operator, ...]:
        return self.program.graph.readers.get(value, ())
