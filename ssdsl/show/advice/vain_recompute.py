"""`ssdsl check`: finds `recompute` statements with which as much is kept for backward as without."""

from collections.abc import Iterator

from ssdsl.analyse.program_index import ProgramIndex
from ssdsl.cluster.cluster import Cluster
from ssdsl.ir.function import AT_ONCE, Function, OpPart, Section
from ssdsl.ir.program import Program
from ssdsl.record import replace
from ssdsl.show.errors import RecomputedInVain
from ssdsl.show.view import size
from ssdsl.simulate.memory.activations import Activations
from ssdsl.simulate.price.fusion import Fusion
from ssdsl.text.source import Source, Span


def vain_recompute(program: Program, source: Source, cluster: Cluster | None) -> tuple[RecomputedInVain, ...]:
    """A warning for each `recompute` of the plan's own text that saves nothing, with the kernels of a cluster, or else
    those of PyTorch."""
    spans = dict.fromkeys(s for f in program.functions for section in f.sections for s in _said(program, section))
    return tuple(_warnings(program, [s for s in spans if s.source is source], cluster))


def _warnings(program: Program, spans: list[Span], cluster: Cluster | None) -> Iterator[RecomputedInVain]:
    kept = _activations(program, cluster) if spans else None
    for span in spans:
        changed = {f.number: w for f in program.functions if (w := _without(program, f, span)) is not f}
        functions = tuple(changed.get(f.number, f) for f in program.functions)
        without = _activations(replace(program, functions=functions), cluster)
        assert kept is not None
        before = sum(without.of(functions[n]).size_bytes for n in changed)
        after = sum(kept.of(program.functions[n]).size_bytes for n in changed)
        if after >= before:
            yield RecomputedInVain(span, size(after), size(before))


def _said(program: Program, section: Section) -> Iterator[Span]:
    """Yields the statements that have a section recomputed."""
    if section.recompute:
        marks = (program.plan.of(i.operator).checkpoint for i in section.body if isinstance(i, OpPart))
        yield from (mark.span for mark in marks if mark is not None)


def _without(program: Program, function: Function, span: Span) -> Function:
    """A function without the recomputation of a statement; the function itself if it has none."""
    if not any(span in _said(program, section) for section in function.sections):
        return function
    sections: list[Section] = []
    for section in function.sections:
        if span in _said(program, section):
            section = replace(section, recompute=False, again=())
        last = sections[-1] if sections else None
        if last is not None and last.layer == section.layer and not last.recompute and not section.recompute:
            gathers = dict.fromkeys((*last.gathers, *section.gathers))
            sections[-1] = replace(last, body=(*last.body, *section.body), gathers=(*gathers,))
        else:
            sections.append(section)
    # gathers of joined sections are others than those that start ahead; when they start changes nothing that is kept
    return replace(function, sections=tuple(replace(s, kind=None) for s in sections), kind=None, ahead=AT_ONCE)


def _activations(program: Program, cluster: Cluster | None) -> Activations:
    facts = ProgramIndex(program) if cluster is None else ProgramIndex.on(program, cluster)
    return Activations(facts, Fusion(facts))
