"""Whether two texts are equal up to the names and versions of values and functions.

Three kinds of names may differ. Those that a text binds itself, so that no other choice of them means anything else:
locals and functions of Python code, `%values` of a printed program. And those that other files know too, such as slots
and blocks: they may have other numbers, `tanh_1` for `tanh` and `block3` for `block2`, the same ones everywhere.
"""

import ast
import json
import math
import re
from collections.abc import Iterator
from typing import Any

VALUE = re.compile(r"%[\w.@]+")
GIVEN = re.compile(r"^\s*(?:parameter|given) (%[\w.@]+)", re.MULTILINE)  # by the model's names
QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
WORD = re.compile(r"[\w@]+(?:\.[\w@]+)*")
NUMBERED = re.compile(r"(block|message|flat)\d+$|(.+?)(?:[_@]\d+)?$")
TASK = re.compile(r"\b([A-Zfb])(\d+)\b")  # of `ssdsl show tasks`
ROUNDING = 1e-9  # of simulated times: sums in another order


class Names:
    """How names of an old text are called in a new one, the same in all files of a program; `fixed` are called alike.

    A slot and an operator of one name have nothing to do with each other, so `slots` are known apart.
    """

    def __init__(self, fixed: frozenset[str] = frozenset()) -> None:
        self.fixed = fixed
        self._words = Bijection()
        self._slots = Bijection()

    def match(self, old: str, new: str, slots: bool = False) -> bool:
        """Whether two texts have the same words, some with other numbers."""
        if WORD.split(old) != WORD.split(new):
            return False
        known = self._slots if slots else self._words
        return all(self._same(known, *two) for two in zip(WORD.findall(old), WORD.findall(new), strict=True))

    def _same(self, known: "Bijection", old: str, new: str) -> bool:
        if old != new and (stem(old) != stem(new) or {old, new} & self.fixed):
            return False
        return known.takes(old, new)


class Bijection:
    """Pairs of names, in which each is in one pair alone."""

    def __init__(self) -> None:
        self.new: dict[str, str] = {}
        self.old: dict[str, str] = {}

    def takes(self, old: str, new: str) -> bool:
        return self.new.setdefault(old, new) == new and self.old.setdefault(new, old) == old


def stem(word: str) -> str:
    """A word without the number of a version or of a block.

    >>> [stem(word) for word in ("tanh", "tanh_12", "tanh@1", "block7", "float32", "fc1.weight", "12")]
    ['tanh', 'tanh', 'tanh', 'block', 'float32', 'fc1.weight', '12']
    """
    found = NUMBERED.match(word)
    return (found[1] or found[2]) if found else word


# -- Python code ------------------------------------------------------------------------------------------------------


def same_code(old: str, new: str, names: Names) -> bool:
    """Whether two modules do the same, up to names. Comments are none of it."""
    first, second = Canonical.of(old), Canonical.of(new)
    if first.text != second.text or len(first.slots) != len(second.slots) or len(first.docs) != len(second.docs):
        return False
    docs = zip(first.docs, second.docs, strict=True)
    slots = zip(first.slots, second.slots, strict=True)
    return all(names.match(*two) for two in docs) and all(names.match(*two, slots=True) for two in slots)


class Canonical(ast.NodeTransformer):
    """Code whose functions and locals are numbered as they occur; its strings apart, with the names of parameters.

    >>> Canonical.of("def f(x):\\n    y = x + 1\\n    return g(y['a'], k=0)").text
    "def top0(local0):\\n    local1 = local0 + 1\\n    return g(local1[''], k=0)"
    """

    def __init__(self, names: dict[str, str], slots: list[str], docs: list[str]) -> None:
        self.names, self.slots, self.docs = names, slots, docs
        self.text = ""

    @classmethod
    def of(cls, code: str) -> "Canonical":
        tree = ast.parse(code)
        top = dict.fromkeys(name for statement in tree.body for name in _bound_at_top(statement))
        found = cls({name: f"top{k}" for k, name in enumerate(top)}, [], [])
        found.text = ast.unparse(found.visit(tree))
        return found

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        decorators = [self.visit(d) for d in node.decorator_list]
        outer = sum(name.startswith("local") for name in self.names.values())
        bound = dict.fromkeys(name for part in (node.args, *node.body) for name in _bound(part))
        names = self.names | {name: f"local{outer + k}" for k, name in enumerate(bound)}
        inner = Canonical(names, self.slots, self.docs)
        self.slots += [a.arg for a in ast.walk(node.args) if isinstance(a, ast.arg)]  # callers may say them
        arguments, body = inner.visit(node.args), [inner.visit(s) for s in node.body]
        name = self.names.get(node.name, node.name)
        return ast.FunctionDef(name, arguments, body, decorators, node.returns, lineno=0)

    def visit_Expr(self, node: ast.Expr) -> ast.Expr:
        match node.value:
            case ast.Constant(str(text)):
                self.docs.append(text)
                return ast.Expr(ast.Constant(""))
        return ast.Expr(self.visit(node.value))

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self.names.get(node.id, node.id), node.ctx)

    def visit_arg(self, node: ast.arg) -> ast.arg:
        return ast.arg(self.names.get(node.arg, node.arg), node.annotation)

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        if not isinstance(node.value, str):
            return node
        self.slots.append(node.value)
        return ast.Constant("")


def _bound(tree: ast.AST) -> Iterator[str]:
    """The names that a part of a function binds; those of imports stay."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                yield name


def _bound_at_top(statement: ast.stmt) -> Iterator[str]:
    match statement:
        case ast.FunctionDef(name=name) | ast.Assign(targets=[ast.Name(id=name)]):
            yield name


# -- printed programs and JSON ----------------------------------------------------------------------------------------


def same_program(old: str, new: str, names: Names) -> bool:
    """Whether two printed programs are equal up to names: those of values are a paragraph's own."""
    ours, theirs = old.split("\n\n"), new.split("\n\n")
    return len(ours) == len(theirs) and all(_same_paragraph(*two, names) for two in zip(ours, theirs, strict=True))


def _same_paragraph(old: str, new: str, names: Names) -> bool:
    (first, ours), (second, theirs) = _numbered(old), _numbered(new)
    slots = len(ours) == len(theirs) and all(names.match(*two, slots=True) for two in zip(ours, theirs, strict=True))
    return slots and names.match(first, second)


def _numbered(paragraph: str) -> tuple[str, list[str]]:
    """Values numbered as they occur, while weights, which other paragraphs know, keep their names; slots apart."""
    given, known = {*GIVEN.findall(paragraph)}, dict[str, str]()

    def number(found: re.Match[str]) -> str:
        return found[0] if found[0] in given else known.setdefault(found[0], f"%{len(known)}")

    return VALUE.sub(number, QUOTED.sub('""', paragraph)), QUOTED.findall(paragraph)


def same_tasks(old: Any, new: Any, names: Names) -> bool:
    """Whether two answers of `show tasks` are equal up to the numbers of blocks: `F3` is the forward of `block3`."""

    def spelt(value: Any) -> Any:
        return json.loads(TASK.sub(r"\1_\2", json.dumps(value)))

    return same_json(spelt(old), spelt(new), names)


def same_json(old: Any, new: Any, names: Names, slots: bool = False) -> bool:
    """Whether two values of JSON are equal up to names, and to the rounding of sums."""
    match old, new:
        case dict(), dict():
            local = Names(names.fixed)  # a site's line is a local of one function, whose number is its own
            return len(old) == len(new) and all(
                names.match(key, other)
                and same_json(old[key], new[other], local if key == "line" else names, key.endswith("slot"))
                for key, other in zip(old, new, strict=True)
            )
        case list(), list():
            return len(old) == len(new) and all(same_json(*two, names, slots) for two in zip(old, new, strict=True))
        case str(), str():
            return names.match(old, new, slots)
        case float(), float():
            return math.isclose(old, new, rel_tol=ROUNDING) or (math.isnan(old) and math.isnan(new))
    return bool(type(old) is type(new) and old == new)


def fixed_names(program: dict[str, Any]) -> frozenset[str]:
    """What a model calls its weights and inputs, and what roles are called: another number is another thing."""
    roles = program["roles"]
    entries = [e for r in roles for e in (r, *r["inputs"], *r["others"])]
    weights = [weight for r in roles for flat in r["flats"] for weight in flat["weights"]]
    return frozenset({*program["inputs"], *(e["name"] for e in (*entries, *weights))})
