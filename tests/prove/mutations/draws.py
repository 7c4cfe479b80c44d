"""What goes wrong with random numbers: the key of another draw or step, positions or sizes of another part."""

from ssdsl.ir.comm import Narrow
from ssdsl.ir.function import Conversion, OpPart
from ssdsl.ir.program import Program
from ssdsl.ir.value import Name
from ssdsl.model.graph import Operator, Ref, Stage
from ssdsl.record import replace
from tests.prove.mutations.mutant import Found, instructions, mutation, put


def with_operator(program: Program, operator: Operator) -> Program:
    """Another operator in the model itself: a capture that went wrong."""
    at = next(k for k, o in enumerate(program.graph.operators) if o.name == operator.name)
    graph = replace(program.graph, operators=put(program.graph.operators, at, operator))
    return replace(program, plan=replace(program.plan, graph=graph))


def renamed(item: object, old: str, new: str) -> object:
    match item:
        case Ref(value):
            return Ref(new if value == old else value)
        case tuple():
            return tuple(renamed(i, old, new) for i in item)
    return item


def draws(program: Program) -> list[Operator]:
    return [o for o in program.graph.operators if o.target in ("ssdsl::dropout", "ssdsl::attention_dropout")]


def key_of(operator: Operator) -> str:
    return next(i.value for i in operator.inputs if i.value.startswith("key_"))


@mutation
def key_of_another_draw(program: Program) -> Found:
    """In the model, so that every part agrees."""
    first, *others = draws(program) or [None]
    for operator in others:
        old, new = key_of(operator), key_of(first)
        inputs = tuple(replace(i, value=new) if i.value == old else i for i in operator.inputs)
        args = renamed(operator.args, old, new)
        changed = with_operator(program, replace(operator, inputs=inputs, args=args))  # type: ignore[arg-type]
        for where, instr, become in instructions(changed):
            if isinstance(instr, OpPart) and instr.operator == operator.name:
                reads = tuple(Name(new) if r == Name(old) else r for r in instr.reads)
                yield where, become(replace(instr, reads=reads))


@mutation
def key_of_another_draw_in_a_part(program: Program) -> Found:
    """In the program only."""
    found = draws(program)
    if not found:
        return
    other = Name(key_of(found[0]))
    for where, instr, become in instructions(program):
        if isinstance(instr, OpPart) and instr.operator in {o.name for o in draws(program)[1:]}:
            yield where, become(replace(instr, reads=tuple(other if "key_" in r.value else r for r in instr.reads)))


@mutation
def key_of_another_step(program: Program) -> Found:
    """Keys made once, as constants are."""
    if not draws(program):
        return
    for p, prologue in enumerate(program.prologues):
        stale = [i.operator for i in prologue.body if isinstance(i, OpPart)]
        body = tuple(i for i in prologue.body if not isinstance(i, OpPart))
        changed = replace(prologue, constants=(*prologue.constants, *stale), body=body)
        yield f"prologue {p}", replace(program, prologues=put(program.prologues, p, changed))
    for operator in program.graph.operators:
        if operator.kind == "key":
            yield f"{operator.name} a constant", with_operator(program, replace(operator, stage=Stage.CONSTANT))


@mutation
def sizes_of_the_part(program: Program) -> Found:
    """But the first: of it the position in the whole does not depend."""
    for operator in draws(program):
        at = next(k for k, a in enumerate(operator.args) if isinstance(a, tuple) and isinstance(a[0], int))
        for axis in range(1, len(operator.args[at])):
            sizes = put(operator.args[at], axis, operator.args[at][axis] // 2)
            yield operator.name, with_operator(program, replace(operator, args=put(operator.args, at, sizes)))


@mutation
def positions_of_another_axis(program: Program) -> Found:
    for where, instr, become in instructions(program):
        if isinstance(instr, OpPart) and instr.operator in {o.name for o in draws(program)}:
            a, b = [k for k, r in enumerate(instr.reads) if r.value.startswith("positions")][:2]
            yield where, become(replace(instr, reads=put(put(instr.reads, a, instr.reads[b]), b, instr.reads[a])))


@mutation
def positions_of_another_part(program: Program) -> Found:
    """The whole's, or another digit's."""
    for where, instr, become in instructions(program):
        if isinstance(instr, Conversion) and instr.source.value.startswith("positions"):
            yield where, become(replace(instr, forward=()))
            for k, step in enumerate(instr.forward):
                if isinstance(step, Narrow):
                    other = replace(step, target=replace(step.target, count=2 * step.target.count))
                    yield f"{where} {other}", become(replace(instr, forward=put(instr.forward, k, other)))


@mutation
def positions_that_begin_elsewhere(program: Program) -> Found:
    for operator in program.graph.operators:
        if operator.kind == "positions":
            yield operator.name, with_operator(program, replace(operator, args=(*operator.args, operator.args[1] + 1)))
