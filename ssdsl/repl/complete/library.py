"""What `use` may take from a file, with the functions' arguments."""

from collections.abc import Iterator

from ssdsl.lang import nodes
from ssdsl.lang.assets import library_files
from ssdsl.lang.parse import parse
from ssdsl.lang.read import read_source
from ssdsl.repl.session import Session
from ssdsl.text.diagnostic import PlanError


def definitions(session: Session, written: str) -> Iterator[tuple[str, str]]:
    """The names that a file defines: `written` is a word of the standard library, or a string."""
    files = {path.stem: path for path in library_files()}
    path = session.draft.folder / written.strip('"') if written.startswith('"') else files.get(written)
    try:
        statements = parse(read_source(path)).statements if path else ()
    except PlanError:
        return
    for s in statements:
        if isinstance(s, nodes.Def | nodes.Let):
            formals = s.formals
            yield s.name.text, "" if formals is None else f"({', '.join(w.text for w in formals)})"
