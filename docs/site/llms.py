"""`llms.txt`: a title, a summary and a line for each page, with links to its Markdown (llmstxt.org)."""

import re

SECTIONS = {
    "Begin": ("README.md", "docs/tutorial.md", "docs/README.md", "docs/cookbook.md", "docs/coming-from.md"),
    "Look up": ("docs/language.md", "docs/commands.md", "api.md", "docs/glossary.md", "plans.md", "errors/index.md"),
}
SUMMARY = """\
A small language for parallel training of PyTorch models. A plan says how a training step is cut into tasks, and where
and when they run. The compiler proves that it computes what one device computes, simulates it, and writes a
torch.distributed program."""


def llms_text(pages: dict[str, str]) -> str:
    """The text. Pages of single errors, plans and files are left out: those that list them are in it."""
    listed = [name for names in SECTIONS.values() for name in names]
    rest = [name for name in pages if name not in listed and pages[name].startswith("# ")]
    more = [name for name in rest if name.startswith("docs/")]
    sections = {**SECTIONS, "More": more, "Optional": [name for name in rest if name not in more]}
    parts = ["# ssdsl", "", *(f"> {line}" for line in SUMMARY.split("\n"))]
    for title, names in sections.items():
        parts += ["", f"## {title}", "", *(f"- [{_title(pages[n])}]({n}): {_first_line(pages[n])}" for n in names)]
    return "\n".join(parts) + "\n"


def _title(text: str) -> str:
    return next(line.removeprefix("# ") for line in text.split("\n") if line.startswith("# "))


def _first_line(text: str) -> str:
    """The first sentence below the title, without links."""
    paragraphs = [p for p in text.split("\n\n") if p[:1].isalnum() or p.startswith(("`", "["))]
    words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", " ".join(paragraphs[0].split())) if paragraphs else ""
    return re.split(r"(?<=[.:]) ", words, maxsplit=1)[0].rstrip(":")
