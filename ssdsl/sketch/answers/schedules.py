"""Finds the standard library's schedules in the text of a plan (imports and calls), and replaces one by another."""

from collections.abc import Iterator

from ssdsl.lang import nodes

LIBRARY = "pipeline"
SCHEDULE = "schedule"  # a word of the language


def is_schedule(script: nodes.Script, name: str) -> bool:
    """Whether a name is that of an imported schedule, or the language's own `schedule`."""
    return any(word.text == name for word in _imports(script)) or (name == SCHEDULE and not _binds(script, name))


def called(script: nodes.Script, within: bool = False) -> Iterator[tuple[str, nodes.Call]]:
    """The statements that call such a schedule, with its name: those of the plan, and with `within` also those in
    conditions, loops and functions."""
    for s in nodes.walk(script) if within else script.statements:
        match s:
            case nodes.Do(call=nodes.Call(function=nodes.NameExpression(text=name)) as call) if is_schedule(
                script, name
            ):
                yield name, call
            case _:
                pass


def with_import(script: nodes.Script, text: str, old: str, new: str) -> str:
    """A text that begins like the script, with the import of one schedule for a call of another: in its place, if no
    other statement calls that one, and beside it otherwise. The language's own word is not imported."""
    calls = sum(isinstance(node, nodes.NameExpression) and node.text == old for node in nodes.walk(script))
    if calls > 1 or old not in {word.text for word in _imports(script)}:
        return with_use(script, text, new)
    use = next(use for use in _uses(script) if old in {word.text for word in use.names})
    names = [word.text for word in use.names if word.text != old]
    names += () if is_schedule(script, new) else (new,)
    written = f"use {LIBRARY}: {', '.join(names)}" if names else ""
    return f"{text[: use.span.start]}{written}{text[use.span.end :]}"


def with_use(script: nodes.Script, text: str, new: str) -> str:
    """A text that begins like the script, with one more schedule imported, unless it is already."""
    if is_schedule(script, new):
        return text
    if (use := next(_uses(script), None)) is not None:
        return f"{text[: use.span.end]}, {new}{text[use.span.end :]}"
    start = script.statements[0].span.start
    return f"{text[:start]}use {LIBRARY}: {new}\n\n{text[start:]}"


def _binds(script: nodes.Script, name: str) -> bool:
    """Whether the script gives a name a meaning of its own, anywhere in it."""
    words: list[nodes.Word] = []
    for s in nodes.walk(script):
        match s:
            case nodes.DefStatement(bound, formals):
                words += [bound, *formals]
            case nodes.LetStatement(name=bound) | nodes.ParamStatement(name=bound):
                words.append(bound)
            case nodes.UseStatement(names=names):
                words += names
            case _:
                pass
    return any(word.text == name for word in words)


def _imports(script: nodes.Script) -> Iterator[nodes.Word]:
    return (word for use in _uses(script) for word in use.names)


def _uses(script: nodes.Script) -> Iterator[nodes.UseStatement]:
    for s in script.statements:
        if isinstance(s, nodes.UseStatement) and isinstance(s.module, nodes.Word) and s.module.text == LIBRARY:
            yield s
