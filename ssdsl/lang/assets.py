"""Where the grammar and the standard library lie: in the installed package, or at the top level of a checkout."""

from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent


@cache
def assets_folder(name: str) -> Path:
    """The folder `grammar`, `stdlib` or `examples`."""
    installed = PACKAGE / "_assets" / name
    return installed if installed.is_dir() else PACKAGE.parent / name


def grammar_text() -> str:
    return (assets_folder("grammar") / "ssp.lark").read_text("utf-8")


def library_files() -> tuple[Path, ...]:
    """The files of the standard library, by name."""
    return tuple(sorted(assets_folder("stdlib").glob("*.ssp")))
