"""Sphinx's settings for the site. `build.py` beside it writes the pages and calls Sphinx."""

import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

from docutils import nodes  # noqa: E402
from ssp_lexer import SspLexer  # noqa: E402

import ssdsl  # noqa: E402

project = "ssdsl"
version = release = ssdsl.__version__
copyright = "the authors of ssdsl"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "index"
exclude_patterns = ["LICENSE"]

# Pages are read by GitHub too: their anchors are those that it gives to headings.
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline", "colon_fence"]
suppress_warnings = ["myst.header"]  # a page may begin below a heading of the first level

html_theme = "furo"
html_title = "ssdsl"
html_static_path = [str(HERE / "static")]
html_css_files = ["site.css"]
html_show_sphinx = False
html_show_copyright = False
html_use_index = False
html_copy_source = False  # build.py puts the Markdown beside the pages
pygments_style = "friendly"
pygments_dark_style = "github-dark"
highlight_language = "text"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_display_short_literal_types = True
add_module_names = False
toc_object_entries_show_parents = "hide"
maximum_signature_line_length = 90

_navigation: dict[Any, Any] = {}  # by folder and options
CODE = re.compile(r"\b(E0\d{3})\b")
BACKTICKS = re.compile(r"(?<!`)`([^`]+)`(?!`)")


def setup(app: Any) -> None:
    app.add_lexer("ssp", SspLexer)
    app.connect("autodoc-process-docstring", _as_rst)
    app.connect("doctree-resolved", _link_codes)
    app.connect("html-page-context", _with_shared_navigation, priority=400)  # before the theme asks for it


def _as_rst(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are plain text with code in backticks, as in Markdown."""
    lines[:] = BACKTICKS.sub(r"``\1``", "\n".join(lines)).split("\n")


def _link_codes(app: Any, tree: nodes.document, page: str) -> None:
    """Codes of diagnostics lead to their pages, also where they do not in a repository."""
    as_they_are = nodes.literal | nodes.literal_block | nodes.reference | nodes.title
    for text in [t for t in tree.findall(nodes.Text) if not isinstance(t.parent, as_they_are)]:
        parts = CODE.split(text)
        if len(parts) == 1:
            continue
        found: list[nodes.Node] = [nodes.Text(part) for part in parts]
        for k, code in enumerate(parts):
            if k % 2 and f"errors/{code}" in app.env.found_docs:
                address = app.builder.get_relative_uri(page, f"errors/{code}")
                found[k] = nodes.reference("", code, internal=True, refuri=address)
        text.parent.replace(text, found)


def _with_shared_navigation(app: Any, page: str, template: str, context: dict[str, Any], tree: Any) -> None:
    """Pages that are in no table of contents, those of diagnostics and files, share the navigation of their folder:
    Sphinx takes longer for it than for all else of a page."""
    if any(page in listed for listed in app.env.toctree_includes.values()) or "toctree" not in context:
        return
    made = context["toctree"]

    def toctree(**options: Any) -> Any:
        key = (str(Path(page).parent), *sorted(options.items()))
        if key not in _navigation:
            _navigation[key] = made(**options)
        return _navigation[key]

    context["toctree"] = toctree
