"""Writes the functions of a role's file that run outside its blocks: constants once, data once per step."""

from collections.abc import Iterator

from ssdsl.codegen.communication import reshard_text, slice_text
from ssdsl.codegen.expressions import assignment, constant_expression, expression
from ssdsl.codegen.python_words import quoted
from ssdsl.codegen.scope import FileScope
from ssdsl.ir.function import First, OpPart, Prologue, Reshard, Slice, Write
from ssdsl.ir.value import Name
from ssdsl.text.diagnostic import InternalError


def constants_text(scope: FileScope) -> str:
    """`constants(c, device)`: makes the tensors that depend on no input and no weight."""
    lines = [
        "def constants(c, device):",
        '    """Adds to `c` the tensors that depend on no input and no weight."""',
        *_constants(scope),
        "    return c",
    ]
    return "\n".join(lines)


def prepare_text(scope: FileScope) -> str:
    """`prepare(c, device)`: makes the tensors that depend on inputs only, in the layouts that the blocks read."""
    lines = [
        "def prepare(c, device):",
        '    """Adds to `c`, which has the batch and the constants, what the blocks read of them."""',
        *(line for p in _here(scope) for line in _prepared(p, scope)),
        "    return c",
    ]
    return "\n".join(lines)


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


def _prepared(prologue: Prologue, scope: FileScope) -> Iterator[str]:
    for instr in prologue.body:
        match instr:
            case OpPart():
                operator = scope.program.graph.by_name[instr.operator]
                targets = assignment(operator, [_kept(v.name) for v in instr.results])
                right = expression(operator, instr, [_kept(r) for r in instr.reads], scope.group)
                scope.stands[-1, ("prepare", "", targets)] = instr
                yield f"    {targets} = {right}"
            case Reshard():
                scope.stands[-1, ("prepare", "", _kept(instr.result.name))] = instr
                yield f"    {_kept(instr.result.name)} = {reshard_text(instr, _kept(instr.source), scope.group)}"
            case Slice():
                yield f"    {_kept(instr.result.name)} = {slice_text(instr, _kept(instr.source))}"
            case First():
                raise InternalError(f"the prologue has no parts of {instr.source}")
            case Write():
                raise InternalError(f"the prologue writes buffer {instr.buffer}")


def _kept(name: Name) -> str:
    return f"c[{quoted(str(name))}]"
