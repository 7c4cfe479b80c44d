"""The option that all commands with a model share: `--no-cache`."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import typer

NoCache = Annotated[
    bool,
    typer.Option("--no-cache", help="Capture the model anew: neither take a graph that is kept nor keep this one."),
]


@dataclass(slots=True)
class _Switch:
    on: bool = True


keeps_graphs = _Switch()  # whether this command takes a kept graph, and keeps a new one


def takes_model(command: Callable[..., None]) -> Callable[..., None]:
    """The command, extended by the option."""

    @functools.wraps(command)
    def extended(*args: Any, no_cache: bool, **options: Any) -> None:
        keeps_graphs.on = not no_cache
        command(*args, **options)

    own = inspect.signature(command)
    kind = inspect.Parameter.KEYWORD_ONLY
    option = inspect.Parameter("no_cache", kind, default=False, annotation=NoCache)
    extended.__signature__ = own.replace(parameters=[*own.parameters.values(), option])  # type: ignore[attr-defined]
    extended.__annotations__ = {**command.__annotations__, "no_cache": NoCache}
    return extended
