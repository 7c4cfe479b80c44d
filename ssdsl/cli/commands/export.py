"""`ssdsl export`: writes what a compiled plan says in the form of another tool."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from ssdsl.cli import options
from ssdsl.cli.options import settings
from ssdsl.cli.pipeline import LoadedPlan, compiled, load
from ssdsl.cli.terminal import print_text, talk
from ssdsl.lang.save import FileMark, check_file, save_text
from ssdsl.text.diagnostic import PlanError

if TYPE_CHECKING:
    from ssdsl.workspace import Compiled

Csv = Annotated[
    bool,
    typer.Option("--csv", help="Write the order of a pipeline as a table that PyTorch's pipelines take, in CSV."),
]
TpPlan = Annotated[
    bool, typer.Option("--tp-plan", help="Write the `tp_plan` of transformers: a style for each module, in JSON.")
]
Out = Annotated[str | None, typer.Option("--out", "-o", metavar="FILE", help="Write a file.", show_default="print it")]


def export(
    plan: options.Plan,
    model: options.Model,
    set_: options.Set,
    csv: Csv = False,
    tp_plan: TpPlan = False,
    out: Out = None,
    meta: options.Meta = False,
) -> None:
    """Write what a plan says in the form of another tool.

    What the form has no word for is refused, with the reason.
    """
    if csv == tp_plan:
        raise typer.BadParameter("say which one form to write: --csv or --tp-plan")
    check_file(out, FileMark.PIPELINE if csv else FileMark.TP_PLAN)
    overrides = settings(set_)
    loaded = load(plan, model, meta=meta)
    program = compiled(loaded, overrides)
    text = _csv(program) if csv else _tp_plan(loaded, program)
    if out is None:
        print_text(text)
        return
    save_text(out, text)
    talk.print(f"wrote {out}", markup=False, soft_wrap=True)


def _csv(program: "Compiled") -> str:
    """The order of a pipeline as a table."""
    from ssdsl.exporters.pipeline_table import table_csv, table_of

    return table_csv(table_of(program.program))


def _tp_plan(loaded: LoadedPlan, program: "Compiled") -> str:
    """The plan as a `tp_plan`; says what of it transformers does otherwise."""
    from ssdsl.exporters.errors import NoTransformer
    from ssdsl.exporters.tp_plan import tp_plan_of
    from ssdsl.tp_plans.entries import is_transformer, model_plans

    loaded.check_has_model()
    if not is_transformer(loaded.model.module):
        raise PlanError(NoTransformer(None, loaded.model.name))
    found = tp_plan_of(program.program, model_plans(loaded.model.module))
    if found.whole:
        said = "operators of these modules are cut by the plan, and computed whole by transformers: "
        talk.print(said + ", ".join(found.whole), markup=False, soft_wrap=True)
    return json.dumps(found.styles, indent=2) + "\n"
