"""The text of a first plan: a header, the model's dimensions, statements that prove, what to try next."""

import re
import shlex
import textwrap
from collections.abc import Sequence

from ssdsl.first_plan.dims import WIDTH, dims_lines
from ssdsl.first_plan.draft import Chosen, Tries
from ssdsl.first_plan.ladder import GOOD, first_draft
from ssdsl.first_plan.next_steps import NextCommand, NextLines, next_commands, next_lines
from ssdsl.lang.header import VERSION
from ssdsl.lang.suggest import counted
from ssdsl.matrix.cell import Cell
from ssdsl.matrix.on_model import divides
from ssdsl.matrix.trials import Trials
from ssdsl.record import Record
from ssdsl.text.diagnostic import InternalError


class FirstPlan(Record):
    """The text of a plan, and what became of it."""

    text: str
    chosen: Chosen
    cell: Cell
    next: tuple[NextLines, ...]


def first_plan(trials: Trials, devices: int, model: str, beside: str, file: str, can_train: bool) -> FirstPlan:
    """A first plan for a model on so many devices. `model` is how the command line names it, `beside` how a header in
    the plan's folder does, `file` the plan's name; `can_train` says that it can be verified. Raises PlanError for a
    model without any plan."""
    tries = Tries(trials)
    chosen = first_draft(tries, devices)
    lines = tuple(next_lines(tries, chosen))
    commands = tuple(next_commands(tries, chosen, model, file, can_train))
    text = _text(tries, chosen, devices, beside, file.rpartition("/")[2], lines, commands)
    cell = tries.cell(text)
    if not tries.proves(cell) or not all(tries.proves(tries.cell(uncommented(text, one.lines))) for one in lines):
        raise InternalError(f"the first plan is not proved as it is written:\n{text}")
    return FirstPlan(text, chosen, cell, lines)


def uncommented(text: str, lines: Sequence[str]) -> str:
    """The text with these lines, which are comments of it, as statements."""
    for line in lines:
        text = re.sub(rf"(?m)^# {re.escape(line)}$", line, text)
    return text


def _text(
    tries: Tries,
    chosen: Chosen,
    devices: int,
    model: str,
    name: str,
    lines: Sequence[NextLines],
    commands: Sequence[NextCommand],
) -> str:
    draft, on = chosen.draft, counted(chosen.draft.devices, "device")
    about = f"{name}: a first plan for {tries.trials.name} on {on}: {'; '.join(draft.about)}."
    head = [
        *textwrap.wrap(about, WIDTH, break_on_hyphens=False, break_long_words=False),
        "",
        f"ssdsl {VERSION}",
        f"for: --model {shlex.quote(model)}",
        "",
        f"The dimensions that a plan can split, and which widths of {devices} devices divide them evenly:",
        "",
        *(f"  {line}" for line in dims_lines(tries.graph, devices)),
        "",
        *_remains(tries, chosen, devices),
    ]
    together = " Also with all of them." if all_prove(tries, chosen, lines) else ""
    after = [f"What to try next. Each was tried: the plan with it is proved for this model.{together}", ""]
    after += [part for one in lines for part in (f"{one.about}:", *one.lines, "")]
    after += [part for one in commands for part in (f"{one.about}:", f"  {one.command}")]
    return "\n".join([_commented(head), "", draft.text, _commented(after), ""])


def all_prove(tries: Tries, chosen: Chosen, lines: Sequence[NextLines]) -> bool:
    """Whether the draft is proved with all lines, of which there are several."""
    text = "\n".join((chosen.draft.text, *(line for one in lines for line in one.lines), ""))
    return len(lines) > 1 and tries.proves(tries.cell(text))


def _commented(lines: Sequence[str]) -> str:
    return "\n".join(f"# {line}".rstrip() for line in lines)


def _remains(tries: Tries, chosen: Chosen, devices: int) -> list[str]:
    """What each device computes, and what cannot be divided."""
    draft, work = chosen.draft, chosen.cell.work
    found = []
    if draft.devices < devices:
        found.append(
            f"No statement that was tried divides this model among {devices} devices: it takes {draft.devices}."
        )
    if draft.devices == 1:
        found.append("It may be trained with other devices only by copying it: each would compute the same.")
    elif divides(chosen.cell):
        found.append(f"The busiest device computes {work:.1%} of what one device would.")
        if (work or 0) > GOOD / draft.devices:
            found.append("The rest is not divided: its dimensions have no such divisors, or its layers are unlike.")
    else:
        found.append("Each device computes all of it: what could be cut has no numbers to multiply.")
    return found
