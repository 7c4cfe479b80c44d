"""Pages of the repository, at their own places, and a page for each other file that they link to."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/*.md", "bench/results/*.md")
PLANS = ("examples/*.ssp", "examples/papers/*.ssp", "stdlib/*.ssp")
LINK = re.compile(r"(?<=\])\((?!\w+:)([^()\s#]+)(#[^()\s]*)?\)")
LANGUAGES = {".ssp": "ssp", ".py": "python", ".toml": "toml", ".json": "json"}
IMAGES = {".svg", ".png"}


def repository_pages(root: Path) -> dict[str, str]:
    """The texts of pages by their places. A link to a file that is no page becomes one to its page, `NAME.md`."""
    pages = {str(p.relative_to(root)): p.read_text("utf-8") for pattern in PAGES for p in sorted(root.glob(pattern))}
    files = {str(p.relative_to(root)) for pattern in PLANS for p in root.glob(pattern)}
    for name, text in pages.items():
        files |= set(_linked(root, name, text)) - pages.keys()
    folders = {name for name in files if (root / name).is_dir()}
    files |= {str(p.relative_to(root)) for name in folders for p in (root / name).glob("*.py")}
    shown = {f"{name}.md": _shown(root, name) for name in sorted(files)}
    pages = {name: _with_pages(name, text, files) for name, text in pages.items()}
    return pages | shown | {"plans.md": _plans(root)}


def _linked(root: Path, page: str, text: str) -> Iterator[str]:
    """The files and folders of the repository that a page links to, without images."""
    for found in LINK.finditer(text):
        name = _place(page, found[1])
        if (root / name).exists() and Path(name).suffix not in IMAGES:
            yield name


def _place(page: str, target: str) -> str:
    return os.path.normpath(os.path.join(os.path.dirname(page), target))


def _with_pages(page: str, text: str, files: set[str]) -> str:
    def link(found: re.Match[str]) -> str:
        name = _place(page, found[1])
        return f"({found[1].rstrip('/')}.md{found[2] or ''})" if name in files else found[0]

    return LINK.sub(link, text)


def _shown(root: Path, name: str) -> str:
    """The page of a file, with its text, or of a folder, with links to those of its Python files."""
    path = root / name
    head = f"---\norphan: true\n---\n\n# {path.name}\n\n`{name}`\n\n"
    if path.is_dir():
        return head + "".join(f"- [{p.name}]({path.name}/{p.name}.md)\n" for p in sorted(path.glob("*.py")))
    return f"{head}`````{LANGUAGES.get(path.suffix, 'text')}\n{path.read_text('utf-8').rstrip()}\n`````\n"


def _plans(root: Path) -> str:
    """A page with a line for each plan that comes with ssdsl: its name, and the comment on top of it."""
    parts = ["# Plans", "", "All plans that come with ssdsl. `ssdsl plans` lists them, too."]
    for title, folder in (
        ("For any model", "examples"),
        ("Of papers", "examples/papers"),
        ("The library", "stdlib"),
    ):
        parts += ["", f"## {title}", ""]
        for path in sorted((root / folder).glob("*.ssp")):
            parts.append(f"- [{path.stem}]({folder}/{path.name}.md): {_summary(path)}")
    return "\n".join(parts) + "\n"


def _summary(path: Path) -> str:
    """The comment on top of a plan, without its name."""
    lines = []
    for line in path.read_text("utf-8").split("\n"):
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# ").rstrip())
    return " ".join(lines).removeprefix(f"{path.name}: ")
