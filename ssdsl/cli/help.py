"""Commands that say which option lacks its value. The help of one that takes a plan lists the plan's params too."""

import itertools
import re
from typing import Any

import typer
from typer.core import TyperCommand, TyperOption

from ssdsl.cli.header_options import with_header
from ssdsl.lang.suggest import suggest
from ssdsl.show.view import Column, ColumnKind, View
from ssdsl.text.diagnostic import PlanError

ARGUMENTS = "ssdsl.arguments"
NO_CHOICE = re.compile(r"(?:Value error, )?'(.*)' is not one of (.*)\.$")


class CheckedCommand(TyperCommand):
    """A command that does not take an option for the value of the one before it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        self._check_values(ctx, args)
        return super().parse_args(ctx, with_header(self, ctx, args))

    def _check_values(self, ctx: Any, args: list[str]) -> None:
        """Raises typer.BadParameter for an option whose value is left out: the parser would take the next option for
        it, as in `--resume --steps 5`."""
        options = [p for p in self.get_params(ctx) if isinstance(p, TyperOption)]
        is_flag = {name: o.is_flag for o in options for name in (*o.opts, *o.secondary_opts)}
        for word, following in itertools.pairwise(args):
            if following in is_flag and not is_flag.get(word, True):
                raise typer.BadParameter(f"{word} needs a value in front of {following}")


class PlanCommand(CheckedCommand):
    """A command whose help knows the plan that was typed beside `--help`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[ARGUMENTS] = tuple(args)
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            error.message = _suggested(error.message)
            raise

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super().format_help(ctx, formatter)
        for word in ctx.meta.get(ARGUMENTS, ()):
            if not word.startswith("-") and (view := _params(word)) is not None:
                from ssdsl.cli.terminal import print_views

                print_views(view)
                return


def _suggested(message: str) -> str:
    """The message about an unknown choice, in our words, with a suggestion.

    >>> _suggested("Value error, 'task' is not one of 'dims', 'tasks'.")
    'there is no `task` here; did you mean `tasks`? It is one of: dims, tasks'
    """
    if (found := NO_CHOICE.match(message)) is None:
        return message
    known = re.findall(r"'([^']*)'", found[2])
    hint = suggest(found[1], known)
    return f"there is no `{found[1]}` here; {f'{hint} ' if hint else ''}It is one of: {', '.join(known)}"


def _params(plan: str) -> View | None:
    """A table of a plan's params; None if this word names no plan."""
    from ssdsl.lang.parse import parse
    from ssdsl.lang.read import read_source
    from ssdsl.lang.shipped import plan_path
    from ssdsl.plan.declarations import params

    try:
        found = params(parse(read_source(plan_path(plan))))
    except PlanError:
        return None
    columns = (Column("--set", style="bold cyan"), Column("default", ColumnKind.COUNT), Column("what it is", fold=True))
    return View(f"params of {plan}", columns, tuple((f"{p.name}=N", p.default, p.help) for p in found))
