"""`use`: the definitions of another file, of the standard library or beside the plan, and nothing else of it."""

from pathlib import Path

from ssdsl.lang import nodes
from ssdsl.lang.assets import library_files
from ssdsl.lang.parse import parse
from ssdsl.lang.read import read_source
from ssdsl.lang.suggest import listed, suggest
from ssdsl.plan.context import Context
from ssdsl.plan.errors.names import NoSuchLibrary, NotInFile, UseCycle, UseOutside
from ssdsl.plan.eval.scope import Scope
from ssdsl.text.diagnostic import PlanError

DEFINITIONS = (nodes.Def, nodes.Let, nodes.Use, nodes.Param)


def use(ctx: Context, scope: Scope, s: nodes.Use) -> None:
    """Bind names to what another file defines."""
    path = _library(s) if isinstance(s.module, nodes.Word) else _beside(ctx, s, s.module.value)
    found = _load(ctx, scope, s, path)
    public = [name for name in found.values if name in found.places]
    for word in s.names:
        if word.text not in public:
            known = f"it defines {listed(public)}" if public else "it defines nothing"
            hint = suggest(word.text, public)
            raise PlanError(NotInFile(word.span, path.name, word.text, hint, known))
        scope.bind(word, found.values[word.text])


def _name(s: nodes.Use) -> str:
    """What diagnostics call the file: as the user wrote it."""
    return s.module.value if isinstance(s.module, nodes.Text) else f"stdlib/{s.module.text}.ssp"


def _library(s: nodes.Use) -> Path:
    assert isinstance(s.module, nodes.Word)
    files = {path.stem: path for path in library_files()}
    name = s.module.text
    if name not in files:
        hint = suggest(name, files) or f"the standard library has {listed(files)}"
        raise PlanError(NoSuchLibrary(s.module.span, name, hint))
    return files[name]


def _beside(ctx: Context, s: nodes.Use, name: str) -> Path:
    """A file in the folder of the file that uses it, after all links are followed; not above the plan's folder."""
    root = (ctx.folder or Path()).resolve()
    base = ctx.files[-1].parent if ctx.files else root
    try:
        path = (base / name).resolve()
        is_file = path.is_file()
    except (OSError, ValueError, RuntimeError):
        raise PlanError(NoSuchLibrary(s.module.span, name[:80], "")) from None
    if not path.is_relative_to(base if ctx.files else root):
        raise PlanError(UseOutside(s.module.span, name))
    if not is_file:
        raise PlanError(NoSuchLibrary(s.module.span, name, suggest(name, sorted(p.name for p in base.glob("*.ssp")))))
    return path


def _load(ctx: Context, scope: Scope, s: nodes.Use, path: Path) -> Scope:
    """The scope of a file's definitions, once per plan."""
    if path in ctx.files:
        raise PlanError(UseCycle(s.module.span, path.name))
    if path not in ctx.libraries:
        while scope.parent is not None:
            scope = scope.parent
        found = Scope(scope)
        script = parse(read_source(path, _name(s)))
        ctx.files.append(path)
        try:
            ctx.execute(ctx, found, tuple(x for x in script.statements if isinstance(x, DEFINITIONS)))
        finally:
            ctx.files.pop()
        ctx.libraries[path] = found
    loaded = ctx.libraries[path]
    assert isinstance(loaded, Scope)
    return loaded
