"""Refuses options that would have no effect in a call: whoever gives an option expects it to do something."""

from collections.abc import Mapping

import typer


def refuse_unused(context: typer.Context, unused: Mapping[str, str]) -> None:
    """Raises typer.BadParameter if one of these parameters was given; each comes with the advice what to change.

    Parameters have the names of the command's function.
    """
    for param in context.command.params:
        source = context.get_parameter_source(param.name) if param.name in unused else None
        if source is not None and source.name == "COMMANDLINE":
            hint = f"'{param.opts[0]}'"
            raise typer.BadParameter(f"it changes nothing here: {unused[param.name]}", param_hint=hint)
