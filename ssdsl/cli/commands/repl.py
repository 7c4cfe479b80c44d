"""`ssdsl repl`: an interactive session in which a plan is written line by line."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ssdsl.cli import options
from ssdsl.cli.commands.clusters import chosen_cluster
from ssdsl.cli.options import settings
from ssdsl.cli.pipeline import captured, check_params, compiled_for, simulated
from ssdsl.cli.terminal import report_bug, results, show_diagnostics, talk
from ssdsl.interrupts import forget_interrupt
from ssdsl.kernel_choice import EAGER
from ssdsl.lang.shipped import plan_path

if TYPE_CHECKING:
    from ssdsl.repl.session import Reply, Session


def repl(
    model: options.Model,
    set_: options.Set,
    plan: options.Plan = "",
    cluster: options.Cluster = "laptop",
    costs: options.Costs = None,
    kernels: options.SimulatedKernels = EAGER,
    meta: options.Meta = False,
) -> None:
    """Write a plan line by line: each statement says what it did. `:help` lists the commands.

    Without a terminal, statements are read from stdin; exits with 1 if one is wrong.
    """
    overrides = settings(set_)
    if plan:
        check_params(plan, overrides)
    chosen = chosen_cluster(cluster)
    graph = captured(model, meta=meta).graph
    from ssdsl.repl.session import Outside, SimulationTarget, begin

    def on_cluster(name: str) -> SimulationTarget:
        other = chosen_cluster(name)
        return SimulationTarget(other, lambda program: simulated(program, other))

    outside = Outside(
        plan_path,
        SimulationTarget(
            chosen, lambda program: simulated(program, chosen, costs), compiled_for(chosen, costs) is not None
        ),
        lambda: results.width,
        on_cluster,
        lambda name: captured(name, meta=meta).graph,
        kernels.kernels,
    )
    session = begin(graph, overrides, outside, Path())
    if plan:
        from ssdsl.repl.commands import load

        session, reply = load(session, plan)
        _show(reply)
    if not _run(session):
        raise typer.Exit(1)


@dataclass
class _Live:
    """The current session, for which the prompt completes."""

    session: "Session"


def _run(session: "Session") -> bool:
    """Handles entries until they end. Returns whether all were right; on a terminal always True."""
    from ssdsl.repl.enter import enter

    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    live, right = _Live(session), True
    for text in _entries(terminal, live):
        try:
            live.session, reply = enter(live.session, text)
            _show(reply)
        except KeyboardInterrupt:
            forget_interrupt()
            talk.print("interrupted: the plan is as it was")
            continue
        except Exception as error:
            if not terminal:
                raise
            report_bug(error)  # the session goes on: nobody loses a plan by our mistake
            continue
        right = right and not reply.failed
        if reply.ends:
            break
    return right or terminal


def _entries(terminal: bool, live: _Live) -> Iterator[str]:
    if not terminal:
        from ssdsl.repl.terminal.blocks import entries

        yield from entries(sys.stdin)
        return
    from ssdsl.repl.terminal.prompt import prompted

    ctx = live.session.facts.context
    talk.print(
        f"{ctx.model.graph.name}: {len(ctx.model.compute):,} operators; :help lists the commands, Ctrl-D quits",
        markup=False,
    )
    yield from prompted(lambda: live.session)


def _show(reply: "Reply") -> None:
    from ssdsl.show.view import View, table
    from ssdsl.text.diagnostic import Diagnostic

    for shown in reply.shown:
        if isinstance(shown, Diagnostic):
            show_diagnostics([shown])
        elif isinstance(shown, View):
            results.print(table(shown, results.width))
        else:
            results.print(shown, markup=False)
    sys.stdout.flush()
