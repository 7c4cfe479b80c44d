"""`ssdsl cache`: the graphs that earlier commands cached."""

from typing import Annotated

import typer

from ssdsl.cli import options
from ssdsl.cli.terminal import print_json, print_views, results

Clear = Annotated[bool, typer.Option("--clear", help="Remove all of them.")]


def cache(clear: Clear = False, json: options.Json = False) -> None:
    """List the graphs that are kept from earlier commands, or remove them.

    A graph is kept as long as the files and variables that its model was made from are what they were, and the
    versions of torch, ssdsl and all other packages; those that were used longest ago make room for new ones.
    """
    from ssdsl.lang.suggest import counted
    from ssdsl.model.cache import entries
    from ssdsl.show.tables.cache import cache_json, cache_view

    if clear:
        removed = entries.clear()
        print_json({"removed": removed}) if json else results.print(f"removed {counted(removed, 'graph')}")
        return
    found = entries.entries()
    if json:
        print_json(cache_json(found))
        return
    print_views(cache_view(found, entries.MOST))
    results.print(str(entries.folder()), markup=False, soft_wrap=True)
