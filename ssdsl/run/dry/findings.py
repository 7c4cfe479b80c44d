"""What the dry steps of a program's roles have shown: where the host waits, and what is wrong."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from ssdsl.lang.suggest import counted
from ssdsl.record import Record
from ssdsl.run.dry.device import DryEvent, Note
from ssdsl.run.dry.dry_run import DryRole
from ssdsl.run.dry.errors import CannotRunDry, HostWaits, NeverAwaited, OperandsOnTwoDevices
from ssdsl.text.diagnostic import Diagnostic
from ssdsl.text.source import Source, Span

END = "update"  # what the engine does at the end of a step


class Finding(Record):
    """An event of a step: `operator` is torch's, `where` is the operator of the model or the communication that it is
    part of, with stars for numbers of layers, or what the engine does. `model` and `plan` are lines of these."""

    event: DryEvent
    operator: str
    where: str
    model: str
    plan: str


class Waits(Record):
    """Findings, each with its number in a step of the role that has most of them."""

    times: tuple[tuple[Finding, int], ...]

    def of(self, event: DryEvent) -> Iterator[tuple[Finding, int]]:
        return ((found, times) for found, times in self.times if found.event is event)


def findings(roles: Iterable[DryRole]) -> Waits:
    """The findings of all roles, in their order."""
    most: dict[Finding, int] = {}
    for role in roles:
        mine = Counter[Finding]()
        for note, times in role.notes:
            mine[_finding(role, note)] += times
        for found, times in mine.items():
            most[found] = max(times, most.get(found, 0))
    return Waits(tuple(most.items()))


def _finding(role: DryRole, note: Note) -> Finding:
    if note.line is None:
        return Finding(note.event, note.operator, note.doing or "the engine", "", "")
    site = role.sites.role.operators.get(note.line.number)
    if site is not None:
        where = f"{site.module} {site.kind}".strip()
        return Finding(note.event, note.operator, where, site.source, site.plan)
    what, _, plan = role.sites.comment(note.line.number).partition("; ")
    where = f"{what} (communication)" if what else f"line {note.line.number} of role {role.name}"
    return Finding(note.event, note.operator, where, "", plan)


def wrong(roles: Sequence[DryRole], source: Source) -> list[Diagnostic]:
    """What must not be, each with the plan's line if that is in this source. At the end of a step the host may wait
    once, for its loss."""
    found: list[Diagnostic] = []
    waits = findings(roles)
    once = sum(times for finding, times in waits.of(DryEvent.WAITS) if finding.where == END) == 1
    for finding, times in waits.times:
        if finding.event is DryEvent.ROUTES or (finding.event is DryEvent.WAITS and finding.where == END and once):
            continue
        cls = HostWaits if finding.event is DryEvent.WAITS else OperandsOnTwoDevices
        span = _span(finding.plan, source)
        lines = filter(None, (finding.where, finding.model, finding.plan if span is None else ""))
        found.append(cls(span, finding.operator, counted(times, "time"), "\n".join(lines)))
    for role in roles:
        if role.unawaited:
            started = "\n".join(dict.fromkeys(role.unawaited))
            found.append(NeverAwaited(None, role.name, counted(len(role.unawaited), "start"), started))
        if role.failed:
            found.append(CannotRunDry(None, role.name, *role.failed))
    return found


def _span(plan: str, source: Source) -> Span | None:
    """The line that a text `experts.ssp:15: split ...` names, if it is of this source."""
    place, _, _ = plan.partition(": ")
    name, _, number = place.rpartition(":")
    if not name or not number.isdecimal() or not source.name.endswith(name):
        return None
    lines = source.text.split("\n")[: int(number)]
    end = sum(len(line) + 1 for line in lines) - 1
    return Span(source, end - len(lines[-1].lstrip()), end)
