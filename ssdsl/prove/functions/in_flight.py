"""Checks conversions that communicate while other instructions run: each starts once, behind what makes its source, and
is awaited once, in front of what reads its result; until then nothing changes its source, and recomputation does not
end.

That its result is not read before the wait, and its source is not overwritten, follows from its place: it is an
instruction like others, which makes the result and reads the source where it is awaited.
"""

from collections.abc import Iterator

from ssdsl.ir.comm import travels
from ssdsl.ir.function import Conversion, Function, OpPart, Section, reads_of, results_of
from ssdsl.ir.value import Name
from ssdsl.prove.facts import ProofFacts
from ssdsl.prove.failures import Rule


def check_in_flight(facts: ProofFacts, function: Function) -> None:
    """Adds a failure for each conversion of a function that starts or waits at a wrong place."""
    weights = frozenset(p.var.name for p in function.parameters)
    for section in (s for s in function.sections if s.in_flight):
        for wanted, pair in _wrong(section, weights):
            where, span = f"function `{function.name}`, section `{section.layer}`", function.submesh.mesh.span
            facts.fail(Rule.IN_FLIGHT, where, "", wanted, f"start at {pair[0]}, wait at {pair[1]}", span)


def _wrong(section: Section, weights: frozenset[Name]) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yields the pairs at wrong places, each with what would be right."""
    body, starts = section.body, [start for start, _ in section.in_flight]
    makers = {v.name: number for number, instr in enumerate(body) for v in results_of(instr)}
    saving = [
        n for n, i in enumerate(body) if isinstance(i, OpPart) and i.learns and (i.saved.inputs or i.saved.outputs)
    ]
    if starts != sorted(starts):
        yield "starts in order", section.in_flight[0]
    for number, (start, wait) in enumerate(section.in_flight):
        instr = body[wait] if 0 <= start < wait < len(body) else None
        if not isinstance(instr, Conversion):
            yield "a conversion, behind its start", (start, wait)
            continue
        if any(wait == other for _, other in section.in_flight[:number]):
            yield "one start of a conversion", (start, wait)
        if instr.again or not any(map(travels, (*instr.forward, *instr.backward))):
            yield "a conversion that communicates, and that backward does not repeat", (start, wait)
        if any(makers.get(read, -1) >= start for read in reads_of(instr)):
            yield f"a start behind %{instr.source}", (start, wait)
        if not weights.isdisjoint(reads_of(instr)):  # which may be gathered only where they are read
            yield "a source that is no weight", (start, wait)
        if (run := section.run_at(start)) is not None and run[0] < start:
            yield "a start between compiled runs", (start, wait)
        if section.recompute and (section.compiled or max(saving, default=-1) < wait):
            yield "a wait in front of the last tensor that backward needs", (start, wait)
