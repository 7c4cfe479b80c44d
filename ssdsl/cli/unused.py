"""An option that the rest of a call leaves without use is refused: whoever gives it expects that it does something."""

from collections.abc import Mapping

import typer


def refuse_unused(context: typer.Context, unused: Mapping[str, str]) -> None:
    """Raise typer.BadParameter if one of these parameters was given; each comes with what to change.

    They are named as the command's function does.
    """
    for param in context.command.params:
        source = context.get_parameter_source(param.name) if param.name in unused else None
        if source is not None and source.name == "COMMANDLINE":
            hint = f"'{param.opts[0]}'"
            raise typer.BadParameter(f"it changes nothing here: {unused[param.name]}", param_hint=hint)
