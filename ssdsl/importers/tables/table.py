"""A table of actions, read and checked: each action once, in an order that does not wait for itself.

`(3F1;2B0)OVERLAP_F_B` is two actions. Cells such as `1SEND_F0` or `2UNSHARD` compute nothing.
"""

import itertools
import re
from collections.abc import Iterator
from typing import NamedTuple

from ssdsl.exporters.table import ActionKind, PipeAction, PipelineTable
from ssdsl.importers.errors import ActionMissing, ActionTwice, NotAnAction, StageOnTwoRanks, TableDeadlock
from ssdsl.importers.imported import Item
from ssdsl.text.diagnostic import Diagnostic, PlanError
from ssdsl.text.source import Source, Span

# -- reading -----------------------------------------------------------------------------------------------------------

COMPUTES = re.compile(r"^(\d+)(F|BW|B|I|W)(\d+)$")
COMMUNICATES = re.compile(r"^(\d+)(UNSHARD|RESHARD|REDUCE_GRAD|SEND_F|RECV_F|SEND_B|RECV_B)(\d*)$")
PAIR = re.compile(r"^\(([^()]*)\)(?:OVERLAP_F_B)?$")
CELL = re.compile(r"[^,\n]+")
INSERTED = "communication follows from the plan"


class _Cell(NamedTuple):
    action: PipeAction
    rank: int
    span: Span
    old_name: str  # as written: in old tables BW is a whole backward, and B beside W the gradients of inputs


def is_table(text: str) -> bool:
    """Whether most cells of a text are actions."""
    cells = [cell.strip() for cell in CELL.findall(text) if cell.strip()]
    good = [c for c in cells if COMPUTES.match(c) or COMMUNICATES.match(c) or PAIR.match(c)]
    return len(good) > 1 and 2 * len(good) > len(cells)


def read_table(source: Source) -> tuple[PipelineTable, tuple[Item, ...], tuple[Item, ...]]:
    """The table of a text, what of each line says the order, and what says nothing in a plan. Raises PlanError with the
    cells that are no actions, that stand twice, or that wait for each other."""
    cells, communicates, mistakes = list[_Cell](), list[Span](), list[Diagnostic]()
    rank = -1
    for line in _lines(source):
        rank += 1
        for span in _cells(line):
            word = span.text
            if COMMUNICATES.match(word):
                communicates.append(span)
                continue
            pair = PAIR.match(word)
            for part in _parts(span) if pair else (span,):
                if found := COMPUTES.match(part.text):
                    kind = ActionKind.BACKWARD if found[2] == "BW" else ActionKind(found[2])
                    cells.append(_Cell(PipeAction(int(found[1]), kind, int(found[3])), rank, part, found[2]))
                else:
                    mistakes.append(NotAnAction(part, part.text))
    if mistakes:
        raise PlanError(*mistakes)
    cells = _of_today(cells)
    table = _checked(cells, source, rank + 1)
    said = _by_line([cell.span for cell in cells], "")
    return table, said, _by_line(communicates, INSERTED)


def _by_line(words: list[Span], becomes: str) -> tuple[Item, ...]:
    """An item for the words of each line."""
    lines = itertools.groupby(words, key=lambda span: span.line)
    return tuple(Item(",".join(span.text for span in own), becomes, line) for line, own in lines)


def _lines(source: Source) -> Iterator[Span]:
    """Yields the lines with something in them; a line of commas alone is a rank without actions."""
    start = 0
    for line in source.text.split("\n"):
        if line.strip():
            yield Span(source, start, start + len(line))
        start += len(line) + 1


def _cells(line: Span) -> Iterator[Span]:
    for cell in CELL.finditer(line.text):
        text = cell[0].strip().strip('"').strip()
        if text:
            start = line.start + cell.start() + cell[0].index(text)
            yield Span(line.source, start, start + len(text))


def _parts(cell: Span) -> Iterator[Span]:
    inner = cell.text[1 : cell.text.index(")")]
    for part in re.finditer(r"[^;]+", inner):
        text = part[0].strip()
        if text:
            start = cell.start + 1 + part.start() + part[0].index(text)
            yield Span(cell.source, start, start + len(text))


def _of_today(cells: list[_Cell]) -> list[_Cell]:
    """The cells with today's names. In tables of torch 2.5 and before `B` is the half that `I` is now."""
    weights = {(a.stage, a.micro) for a in (c.action for c in cells) if a.kind is ActionKind.WEIGHTS}
    inputs = {(a.stage, a.micro) for a in (c.action for c in cells) if a.kind is ActionKind.INPUTS}
    halves = weights - inputs

    def today(cell: _Cell) -> _Cell:
        of = cell.action.stage, cell.action.micro
        is_half = cell.old_name == "B" and of in halves
        return cell._replace(action=cell.action._replace(kind=ActionKind.INPUTS)) if is_half else cell

    return [today(cell) for cell in cells]


# -- checks ------------------------------------------------------------------------------------------------------------


def _checked(cells: list[_Cell], source: Source, ranks: int) -> PipelineTable:
    """The table, all of whose actions are there once. Raises PlanError."""
    if not cells:
        raise PlanError(ActionMissing(Span(source, 0, 0), 0, "a forward", 0))
    found = dict[PipeAction, _Cell]()
    mistakes = list[Diagnostic]()
    where = dict[int, _Cell]()
    for cell in cells:
        for half in cell.action.halves:
            if half in found:
                mistakes.append(ActionTwice(cell.span, str(cell.action), found[half].span))
                break
            found[half] = cell
        first = where.setdefault(cell.action.stage, cell)
        if first.rank != cell.rank:
            mistakes.append(StageOnTwoRanks(cell.span, cell.action.stage, first.rank, cell.rank, first.span))
            where[cell.action.stage] = cell
    stages, micro = 1 + max(c.action.stage for c in cells), 1 + max(c.action.micro for c in cells)
    end = Span(source, len(source.text.rstrip()), len(source.text.rstrip()))
    for stage in range(stages):
        for kind, word in (
            (ActionKind.FORWARD, "a forward"),
            (ActionKind.INPUTS, "a backward"),
            (ActionKind.WEIGHTS, "a half `W`"),
        ):
            lacking = [m for m in range(micro) if PipeAction(stage, kind, m) not in found]
            if kind is ActionKind.WEIGHTS:
                lacking = [m for m in lacking if PipeAction(stage, ActionKind.INPUTS, m) in found]
            if lacking:
                span = where[stage].span if stage in where else end
                mistakes.append(ActionMissing(span, stage, word, lacking[0]))
    if mistakes:
        raise PlanError(*mistakes)
    rows = tuple(tuple(cell.action for cell in cells if cell.rank == rank) for rank in range(ranks))
    spans = {cell.action: cell.span for cell in cells}
    _check_order(PipelineTable(rows), spans)
    return PipelineTable(rows)


def _check_order(table: PipelineTable, spans: dict[PipeAction, Span]) -> None:
    """Raises PlanError if ranks that run their rows in order wait for each other, or for themselves, for ever."""
    stages, done = table.stages, set[PipeAction]()
    rows = [[(half, action) for action in row for half in action.halves] for row in table.rows]
    at = [0] * len(rows)

    def needs(action: PipeAction) -> list[PipeAction]:
        stage, kind, micro = action
        match kind:
            case ActionKind.FORWARD:
                return [PipeAction(stage - 1, ActionKind.FORWARD, micro)] if stage else []
            case ActionKind.INPUTS:
                last = stage == stages - 1
                after = [] if last else [PipeAction(stage + 1, ActionKind.INPUTS, micro)]
                return [PipeAction(stage, ActionKind.FORWARD, micro), *after]
            case _:
                return [PipeAction(stage, ActionKind.INPUTS, micro)]

    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(rows):
            while at[rank] < len(row) and all(need in done for need in needs(row[at[rank]][0])):
                done.add(row[at[rank]][0])
                at[rank] += 1
                moved = True
    waiting = [rank for rank, row in enumerate(rows) if at[rank] < len(row)]
    if not waiting:
        return
    written = {half: action for row in rows for half, action in row}
    chain = dict[PipeAction, PipeAction]()  # what is waited with, and what for, until it closes
    half = rows[waiting[0]][at[waiting[0]]][0]
    while written[half] not in chain:
        need = next(n for n in needs(half) if n not in done)
        chain[written[half]] = written[need]
        owner = table.rank[need.stage]
        half = rows[owner][at[owner]][0]
    circle = [*chain][[*chain].index(written[half]) :]
    steps = tuple((spans[a], table.rank[a.stage], str(a), str(chain[a])) for a in circle)
    raise PlanError(TableDeadlock(steps[0][0], steps))
