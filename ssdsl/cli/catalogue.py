"""`ssdsl models` and `ssdsl plans`: what there is."""

from ssdsl.cli import options
from ssdsl.cli.terminal import print_json, results
from ssdsl.lang.assets import library_files
from ssdsl.lang.shipped import shipped_plans
from ssdsl.show.catalogue import library_view, models_view, plans_view
from ssdsl.show.view import as_json, table


def models(json: options.Json = False) -> None:
    """List the models that come with ssdsl, in all their sizes."""
    view = models_view()
    if json:
        print_json(as_json(view))
    else:
        results.print(table(view, results.width))


def plans(json: options.Json = False) -> None:
    """List the plans that come with ssdsl, and the functions of its standard library."""
    shown = {"plans": plans_view(shipped_plans()), "library": library_view(library_files())}
    if json:
        print_json({name: as_json(view) for name, view in shown.items()})
        return
    for view in shown.values():
        results.print(table(view, results.width))
