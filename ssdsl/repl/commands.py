"""The commands of a session: a table of their names, arguments and functions."""

from collections.abc import Callable, Mapping
from difflib import unified_diff
from functools import partial
from pathlib import Path

from rich.text import Text

from ssdsl.assist.changes import changes
from ssdsl.assist.highlight import coloured
from ssdsl.lang.parse import parse
from ssdsl.lang.read import read_source
from ssdsl.lang.save import FileMark, check_file, put_whole, reason_of, save_text
from ssdsl.lang.suggest import counted
from ssdsl.plan.interpret import interpret_part
from ssdsl.record import Record, replace
from ssdsl.repl.errors import (
    CannotSave,
    FileExists,
    NothingSimulated,
    NothingToRedo,
    NothingToUndo,
    UnknownCommand,
    WrongArgument,
)
from ssdsl.repl.help import TOPICS, topic
from ssdsl.repl.session import (
    Draft,
    Reply,
    Session,
    Shown,
    Simulated,
    advanced,
    drafts_of,
    facts_of,
    tidy,
    went_back,
    went_on,
    with_machine,
    with_model,
    with_settings,
)
from ssdsl.repl.views import VIEWS, compiled, simulated, view
from ssdsl.show.advice.in_time import more_traffic
from ssdsl.show.tables.check import check_views, repeated_warnings
from ssdsl.show.tables.open_params import open_params
from ssdsl.text.diagnostic import REGISTRY, PlanError

Answer = tuple[Session, Reply]
SHORT = {"h": "help", "c": "check", "p": "plan"}  # the command meant, if several begin with this letter


class Command(Record):
    """A command. `takes` is the form of its argument, in brackets if it is optional; `about` says what it does."""

    name: str
    takes: str
    about: str
    run: Callable[[Session, str], Answer]


def command(session: Session, text: str) -> Answer:
    """Runs a line that begins with `:`. The beginning of a name is enough if no other command begins with it, and
    `:comm` stands for `:show comm`. Raises PlanError."""
    name, _, argument = text[1:].strip().partition(" ")
    known = {**COMMANDS, **VIEW_COMMANDS}
    chosen = known.get(SHORT.get(name, name)) or _beginning(COMMANDS, name) or _beginning(VIEW_COMMANDS, name)
    if chosen is None:
        raise PlanError(UnknownCommand(None, name, tuple(known)))
    argument = argument.strip()
    if (chosen.takes == "" and argument) or (chosen.takes and not chosen.takes.startswith("[") and not argument):
        takes = chosen.takes or "no argument"
        raise PlanError(WrongArgument(None, chosen.name, takes, f":{chosen.name} {chosen.takes}".strip(), argument))
    return chosen.run(session, argument)


def _beginning(commands: Mapping[str, Command], name: str) -> Command | None:
    """The only command that begins so; None if there is none, or another one."""
    found = [c for c in commands.values() if c.name.startswith(name)] if name else []
    return found[0] if len(found) == 1 else None


def _how_many(name: str, argument: str) -> int:
    steps = int(argument) if argument.isdecimal() and len(argument) < 6 else 0 if argument else 1
    if not steps:
        raise PlanError(WrongArgument(None, name, "[HOW MANY]", f":{name} 2", argument))
    return steps


def _undo(session: Session, argument: str) -> Answer:
    steps = _how_many("undo", argument)
    if steps >= len(session.drafts):
        raise PlanError(NothingToUndo(None, len(session.drafts) - 1))
    back = went_back(session, steps)
    return back, Reply((f"took back {_difference(session.draft, back.draft)}",))


def _redo(session: Session, argument: str) -> Answer:
    steps = _how_many("redo", argument)
    if steps > len(session.undone):
        raise PlanError(NothingToRedo(None, len(session.undone)))
    again = went_on(session, steps)
    return again, Reply((f"brought back {_difference(again.draft, session.draft)}",))


def _set(session: Session, argument: str) -> Answer:
    """`:set T=4 S=2`, or `:set T` for the plan's own value."""
    overrides, params = dict(session.overrides), session.facts.context.facts.params
    first = next(iter(params), "T")
    for word in argument.replace(",", " ").split():
        name, equal, number = word.partition("=")
        if not equal and name.isidentifier():
            overrides.pop(name, None)
        elif name.isidentifier() and number.removeprefix("-").isdecimal() and len(number) < 10:
            overrides[name] = int(number)
        else:
            raise PlanError(WrongArgument(None, "set", "NAME=N ...", f":set {first}=4", word))
    if unknown := [name for name in overrides if name not in params and name not in session.overrides]:
        name = unknown[0]
        takes = f"a param of the plan, which has {', '.join(params) or 'none'}"
        example = f":set {first}={overrides[name]}" if params else f"param {name} = {overrides[name]}"
        raise PlanError(WrongArgument(None, "set", takes, example, name, tuple(params)))
    then = with_settings(session, overrides)
    values = then.facts.context.facts.params
    said = tuple(f"{name} = {value}, was {params[name]}" for name, value in values.items() if params.get(name) != value)
    return then, Reply(said or ("no change: the params have these values",))


def _cluster(session: Session, argument: str) -> Answer:
    if session.outside.on_cluster is None:
        raise PlanError(WrongArgument(None, "cluster", "no other cluster here", ":simulate", argument))
    elsewhere = with_machine(session, session.outside.on_cluster(argument))
    return elsewhere, Reply((f"from now on on `{argument}`",))


def _model(session: Session, argument: str) -> Answer:
    if session.outside.capture is None:
        raise PlanError(WrongArgument(None, "model", "no other model here", ":check", argument))
    graph = session.outside.capture(argument)
    return with_model(session, graph), Reply((f"the plan is now for {graph.name}: {len(graph.operators):,} operators",))


def _html(session: Session, argument: str) -> Answer:
    from ssdsl.show.advice.by_line import by_line_view
    from ssdsl.show.advice.hides import exposed_and_what_hides
    from ssdsl.show.charts.timeline_html import timeline_html

    check_file(argument, FileMark.PAGE)
    program, machine = compiled(session), session.outside.machine
    report = machine.simulate(program)
    lines = by_line_view(program.program, machine.cluster, report)
    exposed = exposed_and_what_hides(
        program, machine.cluster, report, lambda text: machine.simulate(compiled(session, text))
    )
    save_text(argument, timeline_html(report.timeline, lines, exposed))
    return session, Reply((f"saved {argument}: open it in a browser",))


def _difference(draft: Draft, before: Draft) -> str:
    """The words for what an undo takes away: a statement by its first line, or one text for another."""
    if not draft.text.startswith(before.text):
        return f"what was left of {draft.name}"
    lines = draft.text[len(before.text) :].strip("\n").split("\n")
    said = [line for line in lines if line.strip() and not line.startswith("#")] or lines
    return f"`{said[0]}`" if len(said) == 1 else f"`{said[0]}` and {counted(len(said) - 1, 'line')} below"


def _plan(session: Session, argument: str) -> Answer:
    text = session.draft.text.rstrip("\n")
    return session, Reply((coloured(text) if text else "the plan has no statements yet: `:help` shows the way",))


def _show(session: Session, argument: str) -> Answer:
    if argument not in VIEWS:
        raise PlanError(WrongArgument(None, "show", f"one of {', '.join(VIEWS)}", ":show ops", argument, tuple(VIEWS)))
    return session, Reply(view(session, argument))


def _view(name: str, session: Session, argument: str) -> Answer:
    return _show(session, name)


def _check(session: Session, argument: str) -> Answer:
    program = compiled(session)
    right = Text("the plan is complete and free of deadlock", style="green")
    model, draft = session.workspace.model, session.draft
    opened = open_params(draft.source, draft.folder, model, program.plan.devices, session.overrides)
    shown: tuple[Shown, ...] = (*check_views(program), *((opened,) if opened else ()))
    found = (
        *program.warnings,
        *repeated_warnings(program.program),
        *more_traffic(program, session.outside.machine.links),
    )
    return session, Reply((*shown, right, *found))


def _prove(session: Session, argument: str) -> Answer:
    return session, Reply((Text(str(compiled(session).proof), style="green"),))


def _simulate(session: Session, argument: str) -> Answer:
    from ssdsl.show.advice.capacity import capacity
    from ssdsl.show.tables.report import report_views

    program = compiled(session)
    report = session.outside.machine.simulate(program)
    full = capacity(program.program, program.source, report)
    shown: tuple[Shown, ...] = (*report_views(report), *full)
    return replace(session, simulated=Simulated(session.draft.text, report)), Reply(shown)


def _diff(session: Session, argument: str) -> Answer:
    from ssdsl.show.tables.difference import difference_views

    before = session.simulated
    if before is None:
        raise PlanError(NothingSimulated(None))
    lines = unified_diff(before.text.split("\n"), session.draft.text.split("\n"), n=0, lineterm="")
    changed: list[Shown] = [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    views = difference_views(before.report, simulated(session), ("simulated", "now"))
    return session, Reply((*(changed or ["the text is the same"]), *views))


def _save(session: Session, argument: str, overwrite: bool = False) -> Answer:
    path = _written(session, argument, overwrite)
    count = counted(len(parse(session.draft.source).statements), "statement")
    given = [f"--set {n}={v}" for n, v in session.overrides.items() if n in session.facts.context.facts.params]
    same = f"; it is this plan with {' '.join(given)}" if given else ""
    return session, Reply((f"saved {path}: {count}{same}",))


def _written(session: Session, name: str, overwrite: bool) -> Path:
    """Writes the plan to a file, as a whole or not at all.

    Raises PlanError if the file exists, or if files that the plan uses are not found from its folder.
    """
    path = Path(name).expanduser()
    path = path if path.suffix else path.with_suffix(".ssp")
    if path.is_dir():
        raise PlanError(CannotSave(None, str(path), "is a directory"))
    if path.exists() and not overwrite:
        raise PlanError(FileExists(None, str(path)))
    interpret_part(parse(session.draft.source), session.workspace.model, session.overrides, path.parent)
    try:
        put_whole(path, session.draft.text, overwrite=overwrite)
    except FileExistsError:
        raise PlanError(FileExists(None, str(path))) from None
    except OSError as e:
        raise PlanError(CannotSave(None, str(path), reason_of(e))) from None
    return path


def load(session: Session, argument: str) -> Answer:
    """The session with its plan replaced by another; each statement of that can be undone."""
    path = session.outside.find(argument)
    source = read_source(path)
    draft = Draft(source.text, path.parent, source.name)
    script = parse(source)
    facts = facts_of(draft, script, session.workspace, session.overrides)
    kept = tidy(draft, script)
    drafts = drafts_of(kept, parse(kept.source))
    empty = facts_of(session.drafts[0], parse(session.drafts[0].source), session.workspace, session.overrides)
    said = f"{path}: {counted(len(script.statements), 'statement')}"
    return advanced(session, drafts, facts), Reply((said, *changes(empty, facts)))


def _help(session: Session, argument: str) -> Answer:
    name = argument.removeprefix(":")
    if (found := {**COMMANDS, **VIEW_COMMANDS}.get(name)) is not None and (name != argument or name not in TOPICS):
        return session, Reply((f":{found.name} {found.takes}".strip(), found.about))
    if argument:
        return session, Reply(topic(argument))
    width = max(len(f"{c.name} {c.takes}") for c in COMMANDS.values()) + 3
    lines = [f":{f'{c.name} {c.takes}':{width}}{c.about}" for c in COMMANDS.values()]
    return session, Reply((*lines, "", f"topics: {' '.join(TOPICS)}, or a code such as E0203"))


def _explain(session: Session, argument: str) -> Answer:
    if argument.upper() not in REGISTRY:
        raise PlanError(WrongArgument(None, "explain", "a code, as in error[E0203]", ":explain E0203", argument))
    return session, Reply(topic(argument))


def _quit(session: Session, argument: str) -> Answer:
    return session, Reply(ends=True)


COMMANDS = {
    c.name: c
    for c in (
        Command("undo", "[HOW MANY]", "take back the last statement", _undo),
        Command("redo", "[HOW MANY]", "bring back what `:undo` took", _redo),
        Command("set", "NAME=N ...", "another value of a param; `:set T` is the plan's own again", _set),
        Command("plan", "", "the text so far", _plan),
        Command("list", "", "the same", _plan),
        Command("show", "|".join(VIEWS), "what the plan makes of the model; `:comm` is `:show comm`", _show),
        Command("check", "", "is the plan whole and right?", _check),
        Command("prove", "", "prove that the plan computes what one device computes", _prove),
        Command("simulate", "", "the time and memory of a step on the cluster", _simulate),
        Command("diff", "", "what has changed since the last :simulate", _diff),
        Command("html", "FILE", "write the page with the timeline and the memory of a step", _html),
        Command("cluster", "NAME", "compile for another cluster, and simulate there", _cluster),
        Command("model", "NAME", "the same plan for another model", _model),
        Command("save", "FILE", "write the plan to a new file", _save),
        Command("save!", "FILE", "write it over an old one", partial(_save, overwrite=True)),
        Command("load", "PLAN", "another plan in place of this one", load),
        Command("help", "[TOPIC]", "this, or a statement, a topic or a code", _help),
        Command("explain", "CODE", "what a mistake such as E0203 means", _explain),
        Command("quit", "", "leave; so does Ctrl-D", _quit),
    )
}
VIEW_COMMANDS = {name: Command(name, "", f"`:show {name}`", partial(_view, name)) for name in VIEWS}
