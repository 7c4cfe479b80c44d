"""`ssdsl models`, `ssdsl plans` and `ssdsl ops`: lists of the models, plans and operators that come with ssdsl."""

from typing import Annotated

import typer

from ssdsl.cli import options
from ssdsl.cli.terminal import print_json, print_views


def models(json: options.Json = False) -> None:
    """List the models that come with ssdsl, in all their sizes."""
    from ssdsl.show.tables.catalogue import models_json, models_view

    if json:
        print_json(models_json())
    else:
        print_views(models_view())


def plans(json: options.Json = False) -> None:
    """List the plans that come with ssdsl, and the functions of its standard library."""
    from ssdsl.lang.assets import library_files
    from ssdsl.lang.shipped import shipped_plans
    from ssdsl.show.tables.catalogue import library_view, plans_json, plans_view

    if json:
        print_json(plans_json(shipped_plans(), library_files()))
        return
    print_views(plans_view(shipped_plans()), library_view(library_files()))


def ops(
    word: Annotated[str, typer.Argument(metavar="[WORD]", help="Only operators with this word in their names.")] = "",
    json: options.Json = False,
) -> None:
    """List the operators that ssdsl knows: the dimensions that a plan can split, what merges parts, the row's file."""
    from ssdsl.show.tables.catalogue import operators_json, operators_view

    if json:
        print_json(operators_json(word))
    else:
        print_views(operators_view(word))
