"""Where the grammar and the standard library lie: in the installed package, or at the top level of a checkout; and
where results are kept for the next process."""

import os
import re
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent


@cache
def assets_folder(name: str) -> Path:
    """The folder `grammar`, `stdlib` or `examples`."""
    installed = PACKAGE / "_assets" / name
    return installed if installed.is_dir() else PACKAGE.parent / name


def cache_folder(name: str) -> Path:
    """Where this user's results of a kind are kept: in `$XDG_CACHE_HOME/ssdsl`, by default in `~/.cache`. Raises
    RuntimeError for a user without a home."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ssdsl" / name


def grammar_text() -> str:
    return (assets_folder("grammar") / "ssp.lark").read_text("utf-8")


def library_files() -> tuple[Path, ...]:
    """The files of the standard library, by name."""
    return tuple(sorted(assets_folder("stdlib").glob("*.ssp")))


@cache
def library_names() -> dict[str, str]:
    """The names that the standard library defines, each with the file that `use` takes it from."""
    found = [(path.stem, path.read_text("utf-8")) for path in library_files()]
    return {name: stem for stem, text in found for name in re.findall(r"^(?:def|let) ([a-z]\w*)", text, re.MULTILINE)}
