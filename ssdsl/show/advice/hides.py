"""Changes of a plan after which devices wait less for communication. Each is tried before it is named.

A candidate is a text of the plan: with another schedule, with more buffers for what arrives, or without the sharding
that has gradients reduced after each backward. It is simulated, and named if less communication is exposed, and neither
the step nor the memory that is lacking grows.
"""

import re
from collections.abc import Callable, Iterator, Sequence

from ssdsl.cluster.cluster import Cluster
from ssdsl.ir.program import Program
from ssdsl.plan.plan import State
from ssdsl.record import Record
from ssdsl.show.advice.exposed import ExposedRow, exposed_rows, exposed_view
from ssdsl.show.view import View, seconds, size
from ssdsl.simulate.exposed import Why
from ssdsl.simulate.report import Report
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Source
from ssdsl.workspace import Compiled

EAGER = {"one_f_one_b": "eager_one_f_one_b", "zb_h1": "zb_h2"}  # schedules, with more forwards in flight
MORE_BUFFERS = 4  # times as many
LEAST = 0.01  # of the step: for what devices wait less, no change is tried
LESS = 0.95  # times what was exposed: else a change does not help
NOTHING = 'require 1 == 1, ""'  # a statement in the place of one that is left out
PREFETCH = re.compile(r"^(\s*prefetch .*\bby) \d+", re.MULTILINE)
Trial = Callable[[str], Report]


class Remedy(Record):
    """A change of a plan, in words, and the plan's text with it."""

    words: str
    text: str


def exposed_and_what_hides(compiled: Compiled, cluster: Cluster, report: Report, trial: Trial) -> View:
    """The table of exposed communication, with a note for each change that helps. `trial` simulates a text of the
    plan, or raises PlanError."""
    rows = exposed_rows(compiled.program, cluster, report)
    return exposed_view(report, rows, what_hides(compiled.program, compiled.source, report, rows, trial))


def what_hides(program: Program, source: Source, report: Report, rows: Sequence[ExposedRow], trial: Trial) -> list[str]:
    """A note for each change that helps."""
    found = []
    for change in changes(program, source, [row for row in rows if row.time_s >= LEAST * report.step_s]):
        try:
            after = trial(change.text)
        except PlanError:
            continue
        if helps(report, after):
            step = f"step {seconds(after.step_s)}, not {seconds(report.step_s)}"
            exposed = f"exposed {seconds(after.exposed_s)}, not {seconds(report.exposed_s)}"
            found.append(f"{change.words}: {exposed}; {step}; peak {size(after.peak_bytes)}")
    return found


def helps(before: Report, after: Report) -> bool:
    """Whether less communication is exposed, at the cost of neither time nor a lack of memory."""
    fits = after.over_bytes <= before.over_bytes
    return fits and after.step_s <= before.step_s and after.exposed_s <= LESS * before.exposed_s


def changes(program: Program, source: Source, rows: Sequence[ExposedRow]) -> Iterator[Remedy]:
    """The changes that may hide some of these rows."""
    if any(row.name.kind in ("send", "broadcast") for row in rows):
        for name, eager in EAGER.items():
            if re.search(rf"\b{name}\(", source.text):
                yield Remedy(f"`{eager}` in place of `{name}`", re.sub(rf"\b{name}\b", eager, source.text))
    if any(row.why is Why.BUFFER for row in rows):
        yield _more_buffers(program, source)
    if any(row.name.when == "gradients" and row.name.kind == "reduce_scatter" for row in rows):
        in_time = any(index.parts > 1 for f in program.functions for index in f.time)
        for shard in program.plan.state.shards:
            if in_time and shard.state is State.GRADS and shard.span.source is source:
                number, _ = source.line_column(shard.span.start)
                line = source.line(number)
                said = line.partition(" #")[0].strip()
                lines = source.text.split("\n")
                lines[number - 1] = line[: len(line) - len(line.lstrip())] + NOTHING
                yield Remedy(f"without `{said}`", "\n".join(lines))


def _more_buffers(program: Program, source: Source) -> Remedy:
    """More values ahead: by the `prefetch` that the plan has, or by one for the whole model."""
    ahead = max(program.plan.ahead(op.operator for op in f.operators()) for f in program.functions)
    more = MORE_BUFFERS * max(1, ahead)
    if (said := PREFETCH.search(source.text)) is not None:
        return Remedy(f"`{said[1].strip()} {more}`", PREFETCH.sub(lambda found: f"{found[1]} {more}", source.text))
    statement = f"prefetch model by {more}"
    return Remedy(f"`{statement}`", f"{source.text.rstrip()}\n{statement}\n")
