"""The section of docs/works.md: a table of all pairs, and for each refusal its code, both lines and the reason."""

import re
from collections.abc import Iterable, Iterator
from textwrap import wrap

from bench.works.snippets import SNIPPETS
from ssdsl.matrix.cell import Cell, CellOutcome
from ssdsl.record import Record
from ssdsl.text.diagnostic import Diagnostic

TITLE = "## Statements with statements"
MARKS = {"all": "v", "some": "~", "none": "x", "wrong": "!", "no model": "."}
WIDTH = 110


class Found(Record):
    """What became of a pair on a model, as plain data: `lines` are those of the plan that a refusal shows."""

    outcome: CellOutcome
    code: str = ""
    reason: str = ""
    lines: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    fault: str = ""

    @property
    def is_wrong(self) -> bool:
        """Whether it is neither proved, verified nor refused."""
        return self.outcome not in (CellOutcome.PROVED, CellOutcome.VERIFIED, CellOutcome.REFUSED)


Pair = tuple[str, str]
Cells = dict[Pair, dict[str, Found]]  # by the names of two snippets, and that of the model


def found_of(cell: Cell) -> Found:
    """The plain data of a cell."""
    d = cell.reason
    codes = tuple(dict.fromkeys(w.code for w in cell.warnings))
    if d is None:
        return Found(cell.outcome, warnings=codes, fault=cell.fault)
    return Found(cell.outcome, d.code, d.text(d.title), lines_of(d), codes, cell.fault)


def with_section(page: str, section: str) -> str:
    """The page with this section in place of an earlier one."""
    page = page or "# What works\n\n"
    found = re.search(rf"(?ms)^{re.escape(TITLE)}\n.*?(?=^## |\Z)", page)
    if found is None:
        return f"{page.rstrip()}\n\n{section}"
    return f"{page[: found.start()]}{section}{page[found.end() :]}"


def mark(of_pair: dict[str, Found]) -> str:
    """One letter for what became of a pair on all models."""
    outcomes = {cell.outcome for cell in of_pair.values()}
    if any(cell.is_wrong for cell in of_pair.values()):
        return MARKS["wrong"]
    if not outcomes:
        return MARKS["no model"]
    if CellOutcome.REFUSED not in outcomes:
        return MARKS["all"]
    return MARKS["some" if len(outcomes) > 1 else "none"]


def section_of(cells: Cells, models: dict[str, str]) -> str:
    """The section as Markdown."""
    return "\n".join((TITLE, "", *_intro(cells, models), "", *_table(cells), "", *_refusals(cells), ""))


def _intro(cells: Cells, models: dict[str, str]) -> Iterator[str]:
    tried = [cell for of_pair in cells.values() for cell in of_pair.values()]
    verified = sum(cell.outcome is CellOutcome.VERIFIED for cell in tried)
    refused = sum(cell.outcome is CellOutcome.REFUSED for cell in tried)
    wrong = sum(cell.is_wrong for cell in tried)
    pairs = [of_pair.values() for of_pair in cells.values() if of_pair]
    trained = sum(any(cell.outcome is CellOutcome.VERIFIED for cell in of_pair) for of_pair in pairs)
    text = (
        "Each pair of statements is a plan, made of the lines of both, on 1 to 4 devices. It is proved on each model "
        "on which both statements work alone. On one of these models it is also trained for two steps, with its ranks "
        "as threads, and compared with a single device: every loss, gradient and weight. "
        f"Of {len(tried)} plans {len(tried) - refused - wrong} are proved, {refused} refused, and {wrong} wrong; of "
        f"{len(pairs)} pairs {trained} are trained ({verified} plans)."
    )
    yield from wrap(text, WIDTH)
    yield ""
    yield "<!-- made by `python -m bench works`: change bench/works, and not this section -->"
    yield "| model | is |"
    yield "|---|---|"
    yield from (f"| {name} | `{spec}` |" for name, spec in models.items())


def _table(cells: Cells) -> Iterator[str]:
    names = [s.name for s in SNIPPETS if (s.name, s.name) in cells]
    about = {s.name: s.about for s in SNIPPETS}
    yield "`v`: proved on all models that have both, and trained on one. `~`: on some, and refused on others. `x`:"
    yield "refused on all. `!`: wrong. `.`: no model has both. In the diagonal a statement alone."
    yield ""
    yield "```text"
    wide = max(map(len, names), default=0)
    yield " " * (wide + 4) + "".join(f"{number:>3}" for number in range(1, len(names) + 1))
    for number, name in enumerate(names, 1):
        row = "".join(f"{mark(_of(cells, name, other)):>3}" for other in names)
        yield f"{number:>2}  {name.ljust(wide)}{row}  {about[name]}"
    yield "```"


def _of(cells: Cells, one: str, other: str) -> dict[str, Found]:
    return cells.get((one, other), cells.get((other, one), {}))


def _refusals(cells: Cells) -> Iterator[str]:
    """A row for each refusal: of pairs that are refused alike, the first has its lines."""
    yield "Refused, with the lines of the plan that the error shows ([codes](commands.md): `ssdsl explain CODE`):"
    yield ""
    yield "| statements | on | code | lines | reason |"
    yield "|---|---|---|---|---|"
    found: dict[tuple[str, str, tuple[str, ...]], dict[str, list[str]]] = {}
    for (one, other), of_pair in cells.items():
        for model, cell in of_pair.items():
            if cell.outcome is CellOutcome.REFUSED:
                key = cell.code, _cell(cell.reason), cell.lines
                name = one if one == other else f"{one} x {other}"
                found.setdefault(key, {}).setdefault(name, []).append(model)
    for (code, reason, lines), pairs in sorted(found.items()):
        models = list(dict.fromkeys(model for those in pairs.values() for model in those))
        shown = "<br>".join(f"`{_cell(line)}`" for line in lines)
        yield f"| {', '.join(pairs)} | {', '.join(models)} | {code} | {shown} | {reason} |"


def lines_of(reason: Diagnostic) -> tuple[str, ...]:
    """The lines of the plan that a diagnostic shows, each once; those of a library with the file's name."""
    spans = [span for span in (reason.span, *(span for span, _ in reason.others())) if span is not None]
    found = []
    for span in spans:
        text = span.source.text
        line = text[text.rfind("\n", 0, span.start) + 1 :].partition("\n")[0].strip()
        file = span.source.name.rpartition("/")[2]
        found.append(line if file == "plan.ssp" else f"{file}: {line}")
    return tuple(dict.fromkeys(found))


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|")


def faults(cells: Cells) -> Iterable[str]:
    """What is wrong, as text."""
    for (one, other), of_pair in cells.items():
        for model, cell in of_pair.items():
            if cell.is_wrong:
                yield f"{one} x {other} on {model}: {cell.outcome} {cell.code} {cell.reason}{cell.fault}"
