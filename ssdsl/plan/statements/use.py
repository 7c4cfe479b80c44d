"""`use`: takes definitions of another file, of the standard library or beside the plan, and nothing else of it."""

from pathlib import Path
from typing import Protocol

from ssdsl.lang import nodes
from ssdsl.lang.assets import library_files
from ssdsl.lang.parse import parse, parse_definitions
from ssdsl.lang.read import read_source
from ssdsl.lang.suggest import listed, nearest, suggest
from ssdsl.plan.context import Context
from ssdsl.plan.errors.traced import Traced
from ssdsl.plan.eval.scope import Scope
from ssdsl.text.diagnostic import PlanError

DEFINITIONS = (nodes.DefStatement, nodes.LetStatement, nodes.UseStatement, nodes.ParamStatement)


class Define(Protocol):
    """A function that executes the statements of a file in a context, whose scope then holds the file's definitions."""

    def __call__(self, ctx: Context, statements: tuple[nodes.Statement, ...], /) -> object: ...


def use(ctx: Context, s: nodes.UseStatement, define: Define) -> None:
    """Binds names to the definitions of another file. Raises PlanError, also for mistakes in that file."""
    needed = None
    if isinstance(s.module, nodes.Word):
        path, name = _library(s.module)
        needed = frozenset(word.text for word in s.names)
    else:
        path, name = _beside(ctx, s.module), s.module.value
    if path in ctx.stack.files:
        raise PlanError(UseCycle(s.module.span, path.name))
    found = definitions(ctx, path, name, define, needed)
    for word in s.names:
        if word.text not in found.places:
            public = tuple(definitions(ctx, path, name, define).places)
            raise PlanError(NotInFile(word.span, path.name, word.text, public))
        ctx.scope.bind(word, found.values[word.text])


def definitions(ctx: Context, path: Path, name: str, define: Define, needed: frozenset[str] | None = None) -> Scope:
    """The scope with the definitions of a file, which diagnostics call `name`; of the standard library only those that
    are `needed`, as it has no mistakes to be found. A plan executes the same definitions once."""
    if (path, needed) not in ctx.libraries:
        inner, source = ctx.reading(path, Scope(ctx.scope.outermost)), read_source(path, name)
        script = parse(source) if needed is None else parse_definitions(source, needed)
        define(inner, tuple(x for x in script.statements if isinstance(x, DEFINITIONS)))
        ctx.libraries[path, needed] = inner.scope
    return ctx.libraries[path, needed]


def library_file(stem: str) -> tuple[Path, str]:
    """A file of the standard library, and what diagnostics call it; raises KeyError if there is none."""
    return {path.stem: path for path in library_files()}[stem], f"stdlib/{stem}.ssp"


def _library(module: nodes.Word) -> tuple[Path, str]:
    try:
        return library_file(module.text)
    except KeyError:
        known = tuple(path.stem for path in library_files())
        raise PlanError(NoSuchLibrary(module.span, module.text, known, True)) from None


def _beside(ctx: Context, module: nodes.Text) -> Path:
    """A file in the folder of the file that uses it, with links resolved; it must not be outside of the plan's
    folder."""
    root = (ctx.folder or Path()).resolve()
    files = ctx.stack.files
    base = files[-1].parent if files else root
    try:
        path = (base / module.value).resolve()
        is_file = path.is_file()
    except (OSError, ValueError, RuntimeError):
        raise PlanError(NoSuchLibrary(module.span, module.value[:80], (), False)) from None
    if not path.is_relative_to(base if files else root):
        raise PlanError(UseOutside(module.span, module.value))
    if not is_file:
        known = sorted(p.name for p in base.glob("*.ssp"))
        raise PlanError(NoSuchLibrary(module.span, module.value, tuple(known), False))
    return path


class NoSuchLibrary(Traced):
    """`use` names a file that does not exist: `use pipelin: gpipe`.

    A bare name is a file of the standard library (`ssdsl plans` lists them); a string is a file beside the plan.
    """

    code = "E0234"
    title = "there is no `{name}` to use"
    name: str
    known: tuple[str, ...]  # files of the standard library, or beside the plan
    in_library: bool

    @property
    def change(self) -> str:
        if found := suggest(self.name, self.known):
            return found
        if self.in_library:
            return f'the standard library has {listed(self.known)}; a file of your own is written `use "mine.ssp": f`'
        return f"the folder has {listed(self.known)}" if self.known else "put the file beside the plan"

    @property
    def instead(self) -> tuple[str, ...]:
        return tuple(name if self.in_library else f'"{name}"' for name in nearest(self.name, self.known))


class UseOutside(Traced):
    """`use` takes files beside the plan or in folders below it, and no others, not even through a link."""

    code = "E0235"
    title = "`{name}` is outside of the plan's folder"
    help = "put the file beside the plan"
    name: str


class NotInFile(Traced):
    """The file that `use` names does not define this name: `use pipeline: onef1b`."""

    code = "E0236"
    title = "`{file}` defines no `{name}`"
    note = "it defines {has}"
    file: str
    name: str
    known: tuple[str, ...]

    @property
    def has(self) -> str:
        return listed(self.known) or "nothing"

    @property
    def change(self) -> str:
        if not self.known:
            return "name a file that defines functions"
        return suggest(self.name, self.known) or "choose one of these names"

    @property
    def instead(self) -> tuple[str, ...]:
        return nearest(self.name, self.known)


class UseCycle(Traced):
    """Two files use each other, or a file uses itself."""

    code = "E0237"
    title = "`{name}` uses itself"
    help = "move what both need to a third file"
    name: str
