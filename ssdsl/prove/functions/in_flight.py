"""Checks conversions that communicate while other instructions run, or other tasks: each starts once, behind what makes
its source, and is awaited once, in front of what reads its result; until then nothing changes its source, and
recomputation does not end.

Within a section: that its result is not read before the wait, and its source is not overwritten, follows from its
place: it is an instruction like others, which makes the result and reads the source where it is awaited.

Between tasks: the function that starts it does not read its result, and its one reader, on the same devices and at the
same coordinates, awaits it before it begins. A gradient has one reader as well, so it is complete when it starts.
"""

from collections.abc import Iterator, Sequence

from ssdsl.ir.comm import Transfer, travels
from ssdsl.ir.function import (
    Conversion,
    Function,
    FunctionInput,
    FunctionOutput,
    OpPart,
    Section,
    reads_of,
    results_of,
)
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


# -- between tasks -----------------------------------------------------------------------------------------------------


def check_between(facts: ProofFacts) -> None:
    """Adds a failure for each output in flight that does not travel, or that others read than one function which awaits
    it; and for each input that awaits what is not in flight."""
    program = facts.program
    kept = {(m.producer, m.source_slot) for m in program.messages if isinstance(m, Transfer)}
    kept |= {(r.function, r.slot) for r in program.results}
    readers: dict[tuple[int, str], list[tuple[Function, FunctionInput]]] = {}
    for function in program.functions:
        for given in function.inputs:
            readers.setdefault((given.producer, given.slot), []).append((function, given))
    for function in program.functions:
        where, span = f"function `{function.name}`", function.submesh.mesh.span
        for number, output in enumerate(function.outputs):
            reading = readers.pop((function.number, output.slot), [])
            if any(given.in_flight != output.in_flight for _, given in reading):
                facts.fail(Rule.IN_FLIGHT, where, output.name, "a wait for each start, a start for each wait", "", span)
            elif output.in_flight:
                is_kept = number == function.loss or (function.number, output.slot) in kept
                for wanted in (*_wrong_start(function, output), *_wrong_readers(function, reading, is_kept)):
                    facts.fail(Rule.IN_FLIGHT, where, output.name, wanted, f"{output.slot} in flight", span)
    for function, given in (x for those in readers.values() for x in those if x[1].in_flight):
        where, span = f"function `{function.name}`", function.submesh.mesh.span
        facts.fail(Rule.IN_FLIGHT, where, given.var.name, "an output in flight", given.slot, span)


def _wrong_start(function: Function, output: FunctionOutput) -> Iterator[str]:
    """Yields what would be right where a function starts an output in flight."""
    uses = function.uses
    maker = uses.makers.get(output.name)
    instr = None if maker is None else function.at(maker)
    if maker is None or not isinstance(instr, Conversion):
        yield "the result of a conversion"
        return
    steps = (*instr.forward, *instr.backward)
    if function.again is not None:
        yield "a function that does not run again"
    if instr.again or any(s.in_time for s in steps) or not any(map(travels, steps)):
        yield "a conversion that communicates, and that backward does not repeat"
    if output.name in uses.readers or [o.name for o in function.outputs].count(output.name) > 1:
        yield "nothing that reads it before it is awaited"
    if not {p.var.name for p in function.parameters}.isdisjoint(reads_of(instr)):  # which may be gathered
        yield "a source that is no weight"
    if function.sections[maker.section].is_apart:
        yield "a start outside of layers and of what is recomputed"


def _wrong_readers(
    function: Function, reading: Sequence[tuple[Function, FunctionInput]], is_kept: bool
) -> Iterator[str]:
    """Yields what would be right where an output in flight is awaited."""
    if is_kept or len(reading) != 1:
        yield "one reader"
    for reader, given in reading:
        is_near = given.message is None and not given.merges and reader.submesh == function.submesh
        if not is_near or reader.time != function.time or reader == function:
            yield "a reader on the same devices, at the same coordinates"
