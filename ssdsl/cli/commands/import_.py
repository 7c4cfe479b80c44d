"""`ssdsl import`: a plan from what other tools are told."""

from pathlib import Path
from typing import Annotated

import typer

from ssdsl.cli import options
from ssdsl.cli.terminal import print_json, print_text, print_views, results, talk
from ssdsl.importers.recognise import IMPORTERS, imported
from ssdsl.lang.save import FileMark, check_file, save_text

Given = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="A script or a command line of Megatron-LM, a config of torchtitan or DeepSpeed, a table of PyTorch's "
        "pipelines, a trace of its profiler, or hf:TYPE for the plans of transformers.",
    ),
]
Kind = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="|".join(IMPORTERS),
        help="What the source is.",
        show_default="what stands in it",
        autocompletion=lambda: [*IMPORTERS],
    ),
]
Out = Annotated[
    str | None, typer.Option("--out", "-o", metavar="FILE", help="Write the plan.", show_default="print it")
]


def import_(source: Given, kind: Kind = None, out: Out = None, json: options.Json = False) -> None:
    """Make a plan of what other tools are told, and say of everything in it what became of it.

    Prints what the plan says, what a plan has nothing to say about, and what is refused, or ignored by the tool that
    the source is for. Nothing of the source is run.
    """
    if kind is not None and kind not in IMPORTERS:
        raise typer.BadParameter(f"`{kind}` is none of {', '.join(IMPORTERS)}", param_hint="'--from'")
    from ssdsl.show.tables.imported import imported_json, imported_views

    found = imported(source, kind)
    if out is not None:
        mark = FileMark.PLAN if found.is_plan else FileMark.COSTS
        files = [(Path(out), found.text), *((Path(out).parent / name, text) for name, text in found.files)]
        for path, _ in files:
            check_file(str(path), mark)
        for path, text in files:
            save_text(str(path), text)
    if json:
        print_json(imported_json(found))
        return
    results.print(f"{source if len(source) < 80 else 'this'} is {found.kind}", markup=False, soft_wrap=True)
    print_views(*imported_views(found))
    if out is None:
        print_text(found.text)
        return
    model = "" if found.model else " --model NAME"
    then = f"ssdsl check {out}{model}" if found.is_plan else f"ssdsl simulate PLAN --model NAME --costs {out}"
    talk.print(f"wrote {out}; next: {then}", markup=False, soft_wrap=True)
