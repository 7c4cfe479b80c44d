"""`ssdsl fmt`: formats plans."""

from pathlib import Path
from typing import Annotated

import typer

from ssdsl.cli.terminal import results, talk
from ssdsl.lang.save import put_whole

Files = Annotated[list[str], typer.Argument(metavar="FILE...", help="Plans to format in place.")]
Check = Annotated[bool, typer.Option("--check", help="Change nothing; exit with 1 if a file would change.")]


def fmt(files: Files, check: Check = False) -> None:
    """Format plans: four spaces a block, one space around operators, comments kept."""
    changed = [path for path in map(Path, files) if _format(path, check)]
    for path in changed:
        results.print(f"{'would format' if check else 'formatted'} {path}", markup=False)
    if check and changed:
        talk.print(f"{len(changed)} of {len(files)} files are not formatted")
        raise typer.Exit(1)


def _format(path: Path, check: bool) -> bool:
    """Whether formatting changes the file; unless `check`, it is written to a temporary file that is then renamed."""
    from ssdsl.lang.format import format_script
    from ssdsl.lang.parse import parse
    from ssdsl.lang.read import read_source

    source = read_source(path)
    text = format_script(parse(source), source)
    if text == source.text:
        return False
    if not check:
        put_whole(path, text)
    return True
