"""`ssdsl check`: everything short of running."""

from ssdsl.cli import options
from ssdsl.cli.options import settings
from ssdsl.cli.pipeline import compiled, load
from ssdsl.cli.terminal import print_json, results


def check(
    plan: options.Plan, model: options.Model, set_: options.Set, meta: options.Meta = False, json: options.Json = False
) -> None:
    """Check a plan against a model without running it: coverage, order, deadlock, repeated work."""
    overrides = settings(set_)
    loaded = load(plan, model, meta=meta)
    program = compiled(loaded, overrides)
    from ssdsl.show.check import check_json, check_views
    from ssdsl.show.view import table

    if json:
        print_json(check_json(program))
        return
    for view in check_views(program):
        results.print(table(view, results.width))
    results.print(f"the plan is complete and free of deadlock; {program.proof}", style="green")
