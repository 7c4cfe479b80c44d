"""The folders of the grammar, the standard library and the examples (in the installed package, or at the top level of a
checkout), and the folder of caches."""

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
    """The folder that caches results of this kind for the user: in `$XDG_CACHE_HOME/ssdsl`, by default in `~/.cache`.
    Raises RuntimeError for a user without a home."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ssdsl" / name


def grammar_text() -> str:
    return (assets_folder("grammar") / "ssp.lark").read_text("utf-8")


def library_files() -> tuple[Path, ...]:
    """The files of the standard library, by name."""
    return tuple(sorted(assets_folder("stdlib").glob("*.ssp")))


@cache
def library_names() -> dict[str, str]:
    """The names that the standard library defines, each with the name of the file that defines it (`use FILE:
    NAME`)."""
    found = [(path.stem, path.read_text("utf-8")) for path in library_files()]
    return {name: stem for stem, text in found for name in re.findall(r"^(?:def|let) ([a-z]\w*)", text, re.MULTILINE)}
