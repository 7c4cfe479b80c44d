"""Writes the file of one role: constants, made once, the `prepare` of data, blocks as functions, and its step.

Comments say where lines come from: a heading has the module of the operators below it, with the line of its code that
calls the first, and a line that communicates ends with the value and the plan's statement.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ssdsl.codegen.expressions import assignment, constant_expression, conversion_text, expression
from ssdsl.codegen.function_text import function_text
from ssdsl.codegen.origins import either
from ssdsl.codegen.python_words import quoted
from ssdsl.codegen.scope import FileScope, LineInstr
from ssdsl.codegen.shapes import shape_lines
from ssdsl.codegen.step_text import step_text
from ssdsl.ir.function import Conversion, Instr, OpPart, Prologue, Write
from ssdsl.ir.value import Name
from ssdsl.model.ops.op import imported_name
from ssdsl.record import Record
from ssdsl.runtime import NAMES
from ssdsl.runtime.program.table import OperatorSite
from ssdsl.text.diagnostic import InternalError

PROLOGUE = -1  # the number of `prepare` among the functions of the program


class RoleFile(Record):
    """The Python file of a role. By the numbers of its lines: the instructions, each for a function of the program and
    a layer, where a line that calls a compiled run has the first of it; and the operators."""

    text: str
    instructions: dict[tuple[int, str, int], Instr]
    operators: dict[int, OperatorSite]


def role_file(scope: FileScope) -> RoleFile:
    """The Python file of a role; adds the groups that it uses to the scope."""
    blocks = {scope.block(f.number): function_text(f, scope) for f in scope.blocks}
    parts = {"constants": constants_text(scope), "prepare": prepare_text(scope)}
    parts |= {name: f"@compiled\ndef {name}{text}" for text, name in scope.runs.items()}
    parts |= {name: f"def {name}{text}" for text, name in scope.functions.items()}
    parts |= blocks
    file = _Commented(scope, _head(scope, "\n".join(parts.values())).splitlines())
    for name, text in parts.items():
        file.add(name, text)
    step = step_text(scope)  # it calls methods only, so it needs no imports
    return RoleFile("\n".join([*file.lines, "", "", step, ""]), file.instructions, file.operators)


@dataclass
class _Commented:
    """The lines of a file with their comments."""

    scope: FileScope
    lines: list[str]
    instructions: dict[tuple[int, str, int], Instr] = field(default_factory=dict)
    operators: dict[int, OperatorSite] = field(default_factory=dict)

    def add(self, name: str, text: str) -> None:
        """Adds a function."""
        self.lines += ["", "", *shape_lines(self.scope.shapes.get(name, {})), *self._statements(name)]
        lines, module = text.splitlines(), ""
        start = next(n for n, line in enumerate(lines) if line.startswith("def "))
        for number, line in enumerate(lines):
            known = self.scope.lines.get((name, number - start), [])
            found = [o for o in known if not o.calls]
            if (operator := self._operator(found)) is not None:
                if operator.module != module:
                    above = ", ".join(filter(None, (operator.module, operator.source)))
                    self.lines.append(f"{line[: len(line) - len(line.lstrip())]}# {above}")
                module = operator.module
                self.operators[len(self.lines) + 1] = operator
            self.lines.append(line + self._comment(found))
            self.instructions |= {(o.function, o.layer, len(self.lines)): o.instr for o in known}

    def _statements(self, name: str) -> Iterator[str]:
        """The statements that cut or place the operators in the lines of a function."""
        instrs = (
            o.instr
            for (function, _), found in self.scope.lines.items()
            if function == name
            for o in found
            if not o.calls
        )
        return (f"# {statement}" for statement in self.scope.common.origins.statements(instrs))

    def _operator(self, found: Iterable[LineInstr]) -> OperatorSite | None:
        sites = [self.scope.common.origins.operator(o.instr, o.layer) for o in found if isinstance(o.instr, OpPart)]
        if not sites:
            return None
        kinds, modules, sources, plans, reads = zip(*sites, strict=True)
        return OperatorSite(either(kinds), either(modules), either(sources), either(plans), any(reads))

    def _comment(self, found: Iterable[LineInstr]) -> str:
        pairs = [self.scope.common.origins.comment(o.instr, o.layer) for o in found]
        texts = filter(None, map(either, zip(*pairs, strict=True)))
        return "".join(f"{mark}{text}" for mark, text in zip(("  # ", "; "), texts, strict=False))


def _head(scope: FileScope, code: str) -> str:
    called = {*re.findall(r"\b(\w+)\(", code)}
    called |= {*(["group"] if scope.groups else []), *(["compiled"] if scope.runs else [])}
    used = [name for name in NAMES if name in called]
    mesh = scope.role.submesh.mesh.name
    what = "in a training step" if scope.program.trains else "in an evaluation"
    lines = [
        f'"""What the devices {scope.role.submesh} compute {what} of {scope.program.graph.name}.',
        "",
        'Generated by ssdsl.\n"""',
        "",
        "import torch",
        "import torch.nn.functional as F",
        *_imports(scope.common.modules),
        "",
        *(["from runtime import (", *(f"    {name}," for name in sorted(used)), ")", ""] if used else []),
        *(["aten = torch.ops.aten"] if re.search(r"\baten\.", code) else []),
        *(f"{name} = group({', '.join(map(quoted, (mesh, *axes)))})" for axes, name in scope.groups.items()),
    ]
    return "\n".join(lines)


def _imports(modules: Iterable[str]) -> Iterator[str]:
    """The imports of modules that define operators. A name that is not Python's, such as `40_losses`, needs a call."""
    other = [module for module in modules if imported_name(module) != module]
    if other:
        yield "from importlib import import_module"
    yield from (f"import {module}" for module in modules if module not in other)
    yield from (f'{imported_name(module)} = import_module("{module}")' for module in other)


# -- outside the blocks ------------------------------------------------------------------------------------------------


def constants_text(scope: FileScope) -> str:
    """`constants(c, device)`: makes the tensors that depend on no input and no weight."""
    about = "Adds to `c` the tensors that depend on no input and no weight."
    return _filling("constants", about, _constants(scope))


def prepare_text(scope: FileScope) -> str:
    """`prepare(c, device)`: makes the tensors that depend on inputs only, in the layouts that the blocks read."""
    about = "Adds to `c`, which has the batch and the constants, what the blocks read of them."
    body = [instr for prologue in _here(scope) for instr in prologue.body]
    scope.note("prepare", 2, dict(enumerate(body)), PROLOGUE)
    return _filling("prepare", about, (_prepared(instr, scope) for instr in body))


def _filling(name: str, about: str, lines: Iterable[str]) -> str:
    """A function that adds tensors to `c`."""
    return "\n".join([f"def {name}(c, device):", f'    """{about}"""', *lines, "    return c"])


def _here(scope: FileScope) -> list[Prologue]:
    submeshes = {f.submesh for f in scope.blocks}
    return [p for p in scope.program.prologues if p.submesh in submeshes]


def _constants(scope: FileScope) -> Iterator[str]:
    """The lines of each constant, and deletions of those that nothing reads any more, such as steps towards a mask."""
    names = [*dict.fromkeys(n for p in _here(scope) for n in p.constants)]
    given = {v.name.value for p in _here(scope) for v in p.given}
    last: dict[str, str] = {}  # the last constant that reads one
    for name in names:
        last |= {o.value: name for o in scope.program.graph.by_name[name].outputs if o.value not in given}
        last |= {value: name for value in scope.program.graph.by_name[name].refs() if value in last}
    for name in names:
        yield _constant(name, scope)
        if done := [value for value, reader in last.items() if reader == name]:
            yield f"    del {', '.join(_kept(Name(value)) for value in done)}"


def _constant(name: str, scope: FileScope) -> str:
    operator = scope.program.graph.by_name[name]
    reads = [f"c[{quoted(r)}]" for r in operator.refs()]
    targets = assignment(operator, [_kept(Name(o.value)) for o in operator.outputs])
    return f"    {targets} = {constant_expression(operator, reads)}"


def _prepared(instr: Instr, scope: FileScope) -> str:
    match instr:
        case OpPart():
            operator = scope.program.graph.by_name[instr.operator]
            targets = assignment(operator, [_kept(v.name) for v in instr.results])
            right = expression(operator, instr, [_kept(r) for r in instr.reads], scope.group)
            return f"    {targets} = {right}"
        case Conversion():
            return f"    {_kept(instr.result.name)} = {conversion_text(instr, _kept(instr.source), scope.group)}"
        case Write():
            raise InternalError(f"the prologue writes buffer {instr.buffer}")


def _kept(name: Name) -> str:
    return f"c[{quoted(str(name))}]"
