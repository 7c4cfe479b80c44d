"""The options of a plan's header, which a command takes as if they had been given; those of the command line win."""

import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperOption

from ssdsl.cli.terminal import diagnostics_as_json
from ssdsl.lang.consent import consent, is_consented, model_file
from ssdsl.lang.errors.header import ModelWouldRun
from ssdsl.lang.header import GRAPH, Header, header_of
from ssdsl.lang.read import read_source
from ssdsl.lang.shipped import plan_path
from ssdsl.text.diagnostic import PlanError

MODEL, SET = "--model", "--set"


def with_header(command: Any, ctx: Any, args: Sequence[str]) -> list[str]:
    """The arguments of a command, with those of the header of the first plan among them. Raises PlanError for a header
    that is wrong, or that names a file which the user does not want to run."""
    own = [p for p in command.get_params(ctx) if isinstance(p, TyperOption)]
    options = {name: option for option in own for name in (*option.opts, *option.secondary_opts)}
    if MODEL not in options or {"--help", "-h"} & {*args}:
        return [*args]
    given, plans = _given(options, args)
    if (plan := next(filter(_is_plan, plans), None)) is None:
        return [*args]
    diagnostics_as_json("--json" in args)
    found = []
    names = {value.partition("=")[0] for name, value in given if options[name] is options.get(SET)}
    taken = {options[name].name for name, _ in given}
    for name, value in _header(plan).options:
        if name not in options:
            continue
        if name == SET and value.partition("=")[0] not in names:
            found += [name, value]
        elif name != SET and options[name].name not in taken:
            found += [name, _model(plan, value) if name == MODEL else value]
    return [*found, *args]


def _given(options: dict[str, TyperOption], args: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """The options with their values, and the other arguments."""
    given, others, left = list[tuple[str, str]](), list[str](), [*args]
    while left:
        word = left.pop(0)
        name, equal, value = word.partition("=")
        if name not in options:
            others.append(word)
        elif options[name].is_flag or equal:
            given.append((name, value))
        else:
            given.append((name, left.pop(0) if left else ""))
    return given, others


def _is_plan(word: str) -> bool:
    try:
        return not word.startswith("-") and plan_path(word).is_file()
    except PlanError:
        return False


def _header(plan: str) -> Header:
    try:
        source = read_source(plan_path(plan))
    except PlanError:  # the command says so
        return Header()
    return header_of(source)


def _model(plan: str, model: str) -> str:
    """The model of a header, whose file is looked for beside the plan first. Raises PlanError if the user does not want
    to run that file."""
    folder = plan_path(plan).parent
    if model.endswith(GRAPH) and (folder / model).exists():
        return str(folder / model)
    if (named := model_file(model, folder)) is None:
        return model
    path, found = named
    if is_consented(path):
        return found
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise PlanError(ModelWouldRun(None, plan, found))
    question = f"{plan} asks for the model of {path}, whose file would run. Run it, now and later?"
    if not typer.confirm(question, err=True):
        raise PlanError(ModelWouldRun(None, plan, found))
    consent(path)
    return found
