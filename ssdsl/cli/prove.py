"""`ssdsl prove`: that the compiled program computes what a single device computes, without running it."""

from dataclasses import asdict

import typer

from ssdsl.cli import options
from ssdsl.cli.options import settings
from ssdsl.cli.pipeline import compiled, load, working
from ssdsl.cli.terminal import print_json, results, show_diagnostics
from ssdsl.text.render import render

SHOWN = 10


def prove(plan: options.Plan, model: options.Model, set_: options.Set, json: options.Json = False) -> None:
    """Prove that the program of a plan computes what a single device computes, without running it.

    Derives the part of the model that each local tensor is, forward and backward, and checks every instruction, every
    sum of gradients, every message and the order on every device. Exits with 1 and shows what could not be proved.
    """
    overrides = settings(set_)
    loaded = load(plan, model)
    program = compiled(loaded, overrides).program
    from ssdsl.prove.prove import prove as prove_program

    with working("proving"):
        proof = prove_program(program)
    counts = {k: v for k, v in asdict(proof).items() if k not in ("failures", "seconds")}
    if json:
        print_json({**counts, "seconds": proof.seconds, "failures": [render(f) for f in proof.failures]})
    elif not proof.failures:
        words = ", ".join(f"{n} {what}" for what, n in counts.items())
        results.print(f"proved in {proof.seconds:.2f} s: {words}", style="green")
    if proof.failures:
        if not json:
            show_diagnostics(proof.failures[:SHOWN])
        raise typer.Exit(1)
