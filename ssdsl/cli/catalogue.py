"""`ssdsl models` and `ssdsl plans`: what there is."""

from ssdsl.cli import options
from ssdsl.cli.names import shipped_plans
from ssdsl.cli.terminal import print_json, results
from ssdsl.show.catalogue import models_view, plans_view
from ssdsl.show.view import View, as_json, table


def models(json: options.Json = False) -> None:
    """List the models that come with ssdsl, in all their sizes."""
    _show(models_view(), json)


def plans(json: options.Json = False) -> None:
    """List the plans that come with ssdsl: the examples and the standard library."""
    _show(plans_view(shipped_plans()), json)


def _show(view: View, json: bool) -> None:
    if json:
        print_json(as_json(view))
    else:
        results.print(table(view, results.width))
