"""What the server answers about an open plan: what may follow, what a name is, where it stands, what to change."""

import itertools
import re
from pathlib import Path

from lsprotocol import types
from pygls.exceptions import JsonRpcInvalidParams

from ssdsl.assist import names
from ssdsl.assist.about import about
from ssdsl.assist.complete.offers import offers
from ssdsl.assist.hints import hints
from ssdsl.assist.names import NameKind
from ssdsl.lang import nodes
from ssdsl.lang.assets import assets_folder
from ssdsl.lang.errors.text import GIVEN
from ssdsl.lang.format import format_script
from ssdsl.lang.parser.indentation import KEYWORDS
from ssdsl.lsp.beside import Answer
from ssdsl.lsp.places import offset_of, position_of, range_of, range_of_json, whole
from ssdsl.lsp.plans import OpenPlan
from ssdsl.lsp.tokens import tokens
from ssdsl.lsp.watch import diagnostic_of

NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
APART = (NameKind.INDEX, NameKind.DIMENSION)  # names that are no values
KINDS = {
    NameKind.PARAM: types.SymbolKind.Constant,
    NameKind.VALUE: types.SymbolKind.Variable,
    NameKind.MESH: types.SymbolKind.Array,
    NameKind.FUNCTION: types.SymbolKind.Function,
    NameKind.DIMENSION: types.SymbolKind.Field,
}


def complete(plan: OpenPlan, params: types.CompletionParams) -> list[types.CompletionItem]:
    """The words that may stand here, the likeliest first."""
    at = offset_of(plan.source, params.position)
    start = plan.source.text.rfind("\n", 0, at) + 1
    before, line = plan.source.text[:start], plan.source.text[start:at]
    found = offers(plan.reading or plan.without_model, before, line)
    items = []
    for number, offer in enumerate(found):
        typed = types.Range(position_of(plan.source, at - offer.typed), params.position)
        items.append(
            types.CompletionItem(
                offer.text.strip(),
                detail=offer.about or None,
                sort_text=f"{number:04}",
                filter_text=offer.text,
                text_edit=types.TextEdit(typed, offer.text),
            )
        )
    return items


def hover(plan: OpenPlan, params: types.HoverParams) -> types.Hover | None:
    """What a name is in this model, what a statement adds and costs."""
    if plan.reading is None:
        return None
    at = offset_of(plan.source, params.position)
    found = about(plan.reading, plan.found.script, plan.names, at, plan.costs)
    if found is None or not found.text.strip():
        return None
    return types.Hover(types.MarkupContent(types.MarkupKind.Markdown, found.text), range_of(found.span))


def definition(plan: OpenPlan, params: types.DefinitionParams) -> types.Location | None:
    """Where a name gets its meaning, also in a file of the standard library."""
    one = names.at(plan.names, offset_of(plan.source, params.position))
    if one is None or one.bound is None:
        return None
    used = any(
        isinstance(s, nodes.UseStatement) and one.bound in [w.span for w in s.names]
        for s in plan.found.script.statements
    )
    if used and plan.reading is not None and (place := elsewhere(plan, one.name)) is not None:
        return place
    return types.Location(params.text_document.uri, range_of(one.bound))


def elsewhere(plan: OpenPlan, name: str) -> types.Location | None:
    """The function of another file."""
    assert plan.reading is not None
    value = plan.reading.context.scope.values.get(name)
    node = getattr(value, "node", None)
    if node is None or (path := file_of(plan, node.span.source.name)) is None:
        return None
    return types.Location(path.as_uri(), range_of(node.name.span))


def file_of(plan: OpenPlan, name: str) -> Path | None:
    """The file of a source: of the standard library, or beside the plan."""
    folder, _, file = name.partition("/")
    for path in (assets_folder("stdlib") / file if folder == "stdlib" else None, plan.path.parent / name):
        if path is not None and path.is_file():
            return path.resolve()
    return None


def references(plan: OpenPlan, params: types.ReferenceParams) -> list[types.Location]:
    """All places of a name."""
    uri = params.text_document.uri
    one = names.at(plan.names, offset_of(plan.source, params.position))
    if one is None:
        return []
    found = names.same(plan.names, one)
    return [
        types.Location(uri, range_of(o.span)) for o in found if params.context.include_declaration or not o.is_binding
    ]


def rename(plan: OpenPlan, params: types.RenameParams) -> types.WorkspaceEdit | None:
    """Another name, in all its places of this text."""
    uri = params.text_document.uri
    one = names.at(plan.names, offset_of(plan.source, params.position))
    if one is None or one.bound is None:
        return None
    taken = {o.name for o in plan.names if o.is_binding and o.kind not in APART}
    if not NAME.fullmatch(params.new_name) or params.new_name in {*KEYWORDS, *GIVEN, *taken}:
        raise JsonRpcInvalidParams(f"`{params.new_name}` cannot be a name here")
    edits = [types.TextEdit(range_of(o.span), params.new_name) for o in names.same(plan.names, one)]
    return types.WorkspaceEdit(changes={uri: edits})


def symbols(plan: OpenPlan, params: types.DocumentSymbolParams) -> list[types.DocumentSymbol]:
    """What the statements of the text name."""
    found = []
    for s in plan.found.script.statements:
        bound = [
            o for o in plan.names if o.is_binding and o.kind in KINDS and s.span.start <= o.span.start < s.span.end
        ]
        for one in bound if isinstance(s, nodes.UseStatement) else bound[:1]:
            found.append(types.DocumentSymbol(one.name, KINDS[one.kind], range_of(s.span), range_of(one.span)))
    return found


def folding(plan: OpenPlan, params: types.FoldingRangeParams) -> list[types.FoldingRange]:
    """Statements of several lines, and comments."""
    found = []
    for s in (node for one in plan.found.script.statements for node in nodes.walk(one)):
        if isinstance(s, nodes.Keyworded) and (more := s.span.text.rstrip().count("\n")):
            found.append(
                types.FoldingRange(s.span.line - 1, s.span.line - 1 + more, kind=types.FoldingRangeKind.Region)
            )
    lines = [line.startswith("#") for line in plan.source.text.split("\n")]
    for is_comment, run in itertools.groupby(enumerate(lines), key=lambda pair: pair[1]):
        numbers = [number for number, _ in run]
        if is_comment and len(numbers) > 1:
            found.append(types.FoldingRange(numbers[0], numbers[-1], kind=types.FoldingRangeKind.Comment))
    return found


def formatted(plan: OpenPlan, params: types.DocumentFormattingParams) -> list[types.TextEdit]:
    """The text as `ssdsl fmt` writes it; nothing where it does not parse."""
    if plan.found.mistakes:
        return []
    text = format_script(plan.found.script, plan.source)
    return [] if text == plan.source.text else [types.TextEdit(whole(plan.source), text)]


def inlay_hints(plan: OpenPlan, params: types.InlayHintParams) -> list[types.InlayHint]:
    """What each `split` cuts, behind it."""
    if plan.reading is None or plan.reading.source != plan.source:
        return []
    found = hints(plan.reading, plan.found.script)
    return [types.InlayHint(position_of(plan.source, h.offset), h.text, padding_left=True) for h in found]


def coloured(plan: OpenPlan, params: types.SemanticTokensParams) -> types.SemanticTokens:
    """What each word is."""
    return types.SemanticTokens(data=tokens(plan.source, plan.names))


def actions(plan: OpenPlan, params: types.CodeActionParams) -> list[types.CodeAction]:
    """The changes that helps name, of the problems at a place; and all of the text's at once."""
    uri = params.text_document.uri
    found, every = [], []
    for problem in plan.problems:
        edits = [e for e in problem.get("edits", ()) if e["file"] == plan.source.name]
        shown = diagnostic_of(plan, problem)
        if problem["severity"] == "error" and edits:
            every.append(_edit(plan, edits[0]))
        if not _meet(shown.range, params.range):
            continue
        for number, edit in enumerate(edits):
            found.append(
                types.CodeAction(
                    _said(plan, edit),
                    kind=types.CodeActionKind.QuickFix,
                    diagnostics=[shown],
                    is_preferred=not number,
                    edit=types.WorkspaceEdit(changes={uri: [_edit(plan, edit)]}),
                )
            )
    if len(every) > 1:
        edit = types.WorkspaceEdit(changes={uri: every})
        found.append(
            types.CodeAction("make all changes that helps name", kind=types.CodeActionKind.QuickFix, edit=edit)
        )
    return found


def _edit(plan: OpenPlan, edit: Answer) -> types.TextEdit:
    return types.TextEdit(range_of_json(plan.source, edit), edit["text"])


def _said(plan: OpenPlan, edit: Answer) -> str:
    if not edit["text"]:
        return "remove this"
    at = (edit["line"], edit["column"]) == (edit["end"]["line"], edit["end"]["column"])
    return f"{'add' if at else 'write'} `{edit['text'].strip()}`"


def _meet(a: types.Range, b: types.Range) -> bool:
    return _key(a.start) <= _key(b.end) and _key(b.start) <= _key(a.end)


def _key(position: types.Position) -> tuple[int, int]:
    return position.line, position.character
