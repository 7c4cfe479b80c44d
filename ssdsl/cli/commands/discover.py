"""`ssdsl discover`: rows for the operators of a model that have none, by experiment."""

from typing import Annotated

import typer

from ssdsl.cli import options
from ssdsl.cli.pipeline import captured, working
from ssdsl.cli.terminal import results, talk
from ssdsl.lang.suggest import listed

Operators = Annotated[
    list[str] | None,
    typer.Argument(metavar="OPERATOR...", help="mylib::scan, or scan. By default all operators without a row."),
]


def discover(model: options.Model, operators: Operators = None, meta: options.Meta = False) -> None:
    """Try out the operators of a model that ssdsl has no row for, and print a row for each.

    An operator runs on small random inputs, whole and cut along an axis, forward and backward. The axes along which the
    parts' results give the whole result may be split. Paste the rows into the model's file.
    """
    from ssdsl.discover.discover import discover as tried
    from ssdsl.discover.discover import unknown_calls
    from ssdsl.discover.row_text import rows_text
    from ssdsl.model.graph import Stage
    from ssdsl.model.load.model import computing
    from ssdsl.model.module_to_graph import rewritten_calls

    loaded = captured(model, meta=meta)
    if not any(o.row.unknown and o.stage is not Stage.CONSTANT for o in loaded.graph.operators):
        talk.print(f"ssdsl has a row for every operator of {model}", markup=False)
        return
    capture = rewritten_calls(computing(loaded.model))
    calls = unknown_calls(capture)
    chosen = {name: calls[name] for name in _chosen(operators or [*calls], [*calls])}
    with working(f"trying out {listed(chosen)}"):
        found = tried([(name, call) for name, alike in chosen.items() for call in alike], capture)
    results.print(rows_text(found), markup=False, highlight=False, soft_wrap=True)


def _chosen(words: list[str], names: list[str]) -> list[str]:
    """The operators that the command names. Raises BadParameter for one that is not among them."""
    chosen = {word: [name for name in names if word in (name, name.rpartition("::")[2])] for word in words}
    if unknown := [word for word, found in chosen.items() if not found]:
        reason = f"`{unknown[0]}` is no operator of the model without a row; these are {listed(names)}"
        raise typer.BadParameter(reason, param_hint="'OPERATOR...'")
    return list(dict.fromkeys(name for found in chosen.values() for name in found))
