"""Writes the text of a plan with a search's answers in place of its defaults."""

import re
from collections.abc import Mapping
from pathlib import Path

from ssdsl.lang import nodes
from ssdsl.lang.errors.files import FileUnwritable
from ssdsl.lang.format import format_script
from ssdsl.lang.parse import parse
from ssdsl.lang.save import reason_of, save_text
from ssdsl.plan.declarations import params
from ssdsl.sketch.answers.choices import with_branches
from ssdsl.sketch.sketch import Sketch
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Source

EARLIER = "the best simulated|with|no other number takes|no plan with another number"  # so begins a note on a param


def written(sketch: Sketch, values: Mapping[str, int], notes: Mapping[str, str]) -> str:
    """The sketch's text with these defaults. A param's note stands above it as a comment.

    A number that is not in the param's list, as the user asked for it, is added.
    """
    branches = {name: (values[name],) for name in sketch.script.choices if name in values}
    text = with_branches(sketch.script, branches)
    script = parse(Source(sketch.source.name, text))
    domains = {p.name: p.domain for p in params(script, values)}
    for s in reversed(list(nodes.walk(script))):
        match s:
            case nodes.ParamStatement() if s.name.text in domains:
                text = _with_default(text, s, values, notes, domains[s.name.text])
            case (
                nodes.Do(call=nodes.Call(function=nodes.NameExpression(text=name), arguments=arguments))
                | nodes.LetStatement(value=nodes.Call(function=nodes.NameExpression(text=name), arguments=arguments))
            ) if name in notes and name not in values and any(isinstance(a, nodes.Keyed) for a in arguments):
                text = _with_note(text, s, notes[name])  # of calls with an answer
    source = Source(sketch.source.name, text)
    return format_script(parse(source), source)


def copies_for(sketch: Sketch, folder: Path) -> dict[Path, bytes]:
    """The files that the sketch uses and that a plan in this folder lacks, with their contents: a plan finds files
    beside it. Raises PlanError if another file has the name of one."""
    own, copies = (sketch.folder or Path()).resolve(), dict[Path, bytes]()
    for path in sketch.files:
        copy, content = folder.resolve() / path.relative_to(own), path.read_bytes()
        if not copy.exists():
            copies[copy] = content
        elif copy.read_bytes() != content:
            raise PlanError(FileUnwritable(None, str(copy), f"it is another file than `{path}`, which the plan uses"))
    return copies


def save_plan(sketch: Sketch, text: str, file: str) -> None:
    """Writes the text of a plan that was made from a sketch to a file, and beside it the files that it uses. Raises
    PlanError where one cannot be written."""
    for path, content in copies_for(sketch, Path(file).parent).items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PlanError(FileUnwritable(None, str(path), reason_of(error))) from error
        save_text(str(path), content)
    save_text(file, text)


def with_answer(text: str, call: nodes.Call, name: str, answer: str) -> str:
    """The text of a plan with a call replaced: it calls `name`, with the answer after its arguments. A comma after
    the last of these stays the last."""
    end = call.arguments[-1].span.end
    text = f"{text[:end]}, {answer}{text[end:]}"
    return f"{text[: call.function.span.start]}{name}{text[call.function.span.end :]}"


def _with_default(
    text: str, s: nodes.ParamStatement, values: Mapping[str, int], notes: Mapping[str, str], domain: tuple[int, ...]
) -> str:
    name = s.name.text
    if name not in values:
        return text
    value = values[name]
    if s.domain is not None and value not in domain:
        text = _with_number(text, s.domain, value)
    text = f"{text[: s.default.span.start]}{value}{text[s.default.span.end :]}"
    if note := notes.get(name):
        text = _with_note(text, s, note)
    return text


def _with_number(text: str, domain: nodes.Expr, value: int) -> str:
    """The text with one more number in a list that it writes, or behind a list that it computes."""
    if isinstance(domain, nodes.ListOf):
        last = domain.items[-1].span.end
        return f"{text[:last]}, {value}{text[last:]}"
    start, end = domain.span.start, domain.span.end
    return f"{text[:start]}({text[start:end]}) + [{value}]{text[end:]}"


def _with_note(text: str, s: nodes.Statement, note: str) -> str:
    """The text with a comment above a statement, as far to the right, in place of what an earlier search wrote there
    about the same param."""
    line = text.rfind("\n", 0, s.span.start) + 1
    above, before = text[:line], text[line : s.span.start]
    if param := re.match(r"\w+ = ", note):
        above = re.sub(rf"(?:[ \t]*# {param[0]}\d+: (?:{EARLIER})[^\n]*\n)+\Z", "", above)
    return f"{above}{before}# {note}\n{' ' * len(before)}{text[s.span.start :]}"
