"""The forward of a program, alone: no gradients, no reductions, no update. Sections gather weights as before.

The tasks keep their order, which is a part of one order of all tasks, so that no role waits for another in a circle.
Signals order tasks that share no data, and go; so do conversions that served gradients only.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import assert_never

from ssdsl.ir.action import (
    Action,
    Compute,
    Free,
    GatherParam,
    Start,
    StartReduce,
    Update,
    Wait,
    WaitReduce,
)
from ssdsl.ir.comm import Transfer
from ssdsl.ir.function import Backward, Extend, First, Function, Instr, Op, Reshard, Slice, Write
from ssdsl.ir.param import FlatParam, Zero
from ssdsl.ir.program import Program
from ssdsl.ir.value import Name, Var
from ssdsl.lower.functions.form_sections import section_gathers
from ssdsl.model.saved_tensors import Saved
from ssdsl.plan.plan import Phase


def forward_only(program: Program) -> Program:
    """The program without all that trains. Its parameters stay as they are, for they are state of the devices."""
    functions = tuple(_forward(f, program.flats) for f in program.functions)
    transfers = [m for m in program.messages if isinstance(m, Transfer)]
    numbers = {m.number: number for number, m in enumerate(transfers)}
    return replace(
        program,
        functions=functions,
        messages=tuple(replace(m, number=numbers[m.number], backward=None) for m in transfers),
        roles=tuple(replace(r, actions=tuple(_actions(r.actions, numbers))) for r in program.roles),
        loss=replace(program.loss, name=_renamed(program.functions[program.loss.function], program.loss.name)),
        results=tuple(replace(r, value=_renamed(program.functions[r.function], r.value)) for r in program.results),
        stated={task: spans for task, spans in program.stated.items() if task.phase is Phase.FORWARD},
        trains=False,
    )


def _actions(actions: tuple[Action, ...], numbers: dict[int, int]) -> Iterator[Action]:
    for action in actions:
        match action:
            case Compute():
                if action.phase is Phase.FORWARD:
                    yield action
            case Start() | Wait():
                if action.message in numbers and not action.gradient:
                    yield replace(action, message=numbers[action.message])
            case Free():
                yield action
            case StartReduce() | WaitReduce() | Update() | GatherParam():
                pass
            case _:
                assert_never(action)


# -- functions ---------------------------------------------------------------------------------------------------------


def _forward(function: Function, flats: tuple[FlatParam, ...]) -> Function:
    """A function whose values have no gradients, and whose sections are not run again."""
    names = _same(function)

    def bare(var: Var) -> Var:
        return replace(var, gradient=None)

    def changed(instr: Instr) -> Instr:
        match instr:
            case Op():
                results = tuple(map(bare, instr.results))
                reads = tuple(names.get(r, r) for r in instr.reads)
                return replace(instr, reads=reads, results=results, sides=None, saved=Saved())
            case Reshard():
                source = names.get(instr.source, instr.source)
                in_place = (instr.in_place[0], False)
                rows = None
                if instr.rows is not None:
                    before, after = (names.get(r, r) for r in instr.rows)
                    rows = before, after
                return Reshard(source, bare(instr.result), instr.forward, (), in_place, rows)
            case Slice() | First():
                return replace(instr, source=names.get(instr.source, instr.source), result=bare(instr.result))
            case Extend():
                source, earlier = (names.get(n, n) for n in (instr.source, instr.earlier))
                return replace(instr, source=source, earlier=earlier, result=bare(instr.result))
            case Write():
                return replace(instr, source=names.get(instr.source, instr.source))
            case _:
                assert_never(instr)

    sections = tuple(
        replace(s, recompute=False, body=tuple(changed(i) for i in s.body if not _serves_gradient(i)), gathers=())
        for s in function.sections
    )
    gathered = {
        w: f.number for f in flats if f.zero is Zero.WEIGHTS and f.submesh == function.submesh for w in f.weights
    }
    sections = tuple(s for s in sections if s.body)
    gathers = section_gathers(replace(function, sections=sections), gathered)
    return replace(
        function,
        inputs=tuple(replace(i, var=bare(i.var), gradient=False) for i in function.inputs),
        prepared=tuple(replace(p, var=bare(p.var)) for p in function.prepared),
        parameters=tuple(replace(p, var=bare(p.var)) for p in function.parameters),
        sections=tuple(replace(s, gathers=g) for s, g in zip(sections, gathers, strict=True)),
        outputs=tuple(
            replace(o, name=names.get(o.name, o.name), gradient=False, wgrad_only=False) for o in function.outputs
        ),
        backward=Backward.NONE,
    )


def _serves_gradient(instr: Instr) -> bool:
    """Whether an instruction leaves the value as it is."""
    return isinstance(instr, Reshard) and not instr.forward


def _same(function: Function) -> dict[Name, Name]:
    """Values that are the same as an earlier one, once no gradient tells them apart."""
    names: dict[Name, Name] = {}
    for instr in function.body():
        if isinstance(instr, Reshard) and not instr.forward:
            names[instr.result.name] = names.get(instr.source, instr.source)
    return names


def _renamed(function: Function, name: Name) -> Name:
    return _same(function).get(name, name)
