"""The Markdown of the page of Python's interface: its directives become signatures and docstrings, which are Markdown
already."""

import inspect
import re
from importlib import import_module
from typing import Any

BLOCK = re.compile(r"^```\{eval-rst\}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DIRECTIVE = re.compile(r"^\.\. auto\w+:: ([\w.]+(?:\(\))?)((?:\n .*)*)", re.MULTILINE)
SHORT = re.compile(r"\b(?:ssdsl|torch|collections|typing|os|pathlib)(?:\.\w+)*\.(?=\w)")


def api_text(page: str) -> str:
    """The page with all that Sphinx would write in it."""
    return BLOCK.sub(lambda block: "\n\n".join(_object(*found) for found in DIRECTIVE.findall(block[1])), page)


def _object(name: str, options: str) -> str:
    is_made_by_others = name.endswith("()")
    described = _named(name.removesuffix("()"))
    wanted = re.search(r":members:((?:[^:]|\n)*)", options)
    members = re.findall(r"\w+", wanted[1]) if wanted else []
    if wanted and not members:
        members = [m for m, value in vars(described).items() if not m.startswith("_") and inspect.getdoc(value)]
    first = _described(name.removesuffix("()"), described, has_signature=not is_made_by_others)
    parts = [first, *(_described(m, getattr(described, m)) for m in members)]
    return "\n\n".join([f"### {parts[0]}", *(f"#### {part}" for part in parts[1:])])


def _named(name: str) -> Any:
    module, _, last = name.rpartition(".")
    return getattr(import_module(module), last)


def _described(name: str, value: Any, has_signature: bool = True) -> str:
    """A heading with the signature, and the docstring."""
    signature = SHORT.sub("", str(inspect.signature(value))) if has_signature and callable(value) else ""
    return f"`{name}{signature}`\n\n{inspect.getdoc(value) or ''}"
