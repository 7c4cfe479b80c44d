"""`backward`: the gradients that the proof derives, and each rule that it holds, on programs of graphs written by hand.

A test changes what is written of gradients alone, so that the forward walk finds nothing.
"""

from collections.abc import Callable

import pytest

from ssdsl.ir.comm import KeepFirst, Narrow, Step, Transfer
from ssdsl.ir.function import Backward, Conversion, Function, FunctionOutput, Instr, OpPart
from ssdsl.ir.layout import PARTIAL, Layout
from ssdsl.ir.program import Program
from ssdsl.ir.value import Axis, Name, Time, Var
from ssdsl.lower.lower import lower
from ssdsl.lower.stages import Held
from ssdsl.prove.facts import ProofFacts, facts_of
from ssdsl.prove.failures import Rule, Wrong
from ssdsl.prove.functions.alike import Classes
from ssdsl.prove.functions.backward import backward
from ssdsl.prove.functions.flow import Flow
from ssdsl.prove.functions.forward import forward
from ssdsl.prove.functions.prologues import prologues
from ssdsl.prove.types.local import Local, LocalDigit
from ssdsl.record import replace
from tests.lower.by_hand import graph_of, plan_of

SIZES = {"batch": 8, "in": 4, "mid": 4, "out": 6}
TP, M = Axis("tp"), Time("m")
CHAIN = """
    input x[batch, in]
    weight v[in, mid]
    weight w[mid, out]
    h[batch, mid] = mm x[batch, in] v[in, mid]
    r[batch, mid] = relu h[batch, mid]
    y[batch, out] = mm r[batch, mid] w[mid, out]
    q[batch, out] = mul y[batch, out] y[batch, out]
    loss[] = sum q[batch, out]
"""
PENALTY = CHAIN.replace("loss[]", "s[]") + "p[] = sum v[in, mid]\nloss[] = add s[] p[]"
ROWS = CHAIN.replace(
    "q[batch, out] = mul y[batch, out] y[batch, out]", "q[batch, out] = mul y[batch, out] u[batch, out]"
)
ROWS = ROWS.replace("weight w", "weight u[batch, out]\n    weight w")
STAGES = {"h": 0, "r": 0, "y": 1, "q": 1, "loss": 1}


def program(text: str, splits: dict[str, str], **stages: int) -> Program:
    places = {name: ("pp", stage) for name, stage in stages.items()}
    return lower(plan_of(graph_of(text, **SIZES), {"pp": 2, "tp": 2} if stages else {"tp": 2}, splits, places))


def split() -> Program:
    """`mid` on devices: `y` is a sum over them."""
    return program(CHAIN, {"mid": "tp 2"})


def staged() -> Program:
    """Two stages, the batch in two parts."""
    return program(CHAIN, {"batch": "m 2", "mid": "tp 2"}, **STAGES)


def typed(found: Program) -> tuple[ProofFacts, Flow]:
    """The functions after the forward walk, in which nothing is wrong."""
    facts = facts_of(found)
    flow = Flow(facts, Classes(facts))
    flow.note_messages()
    prepared = prologues(facts)
    for function in found.functions:
        forward(facts, function, prepared.get(function.submesh, {}), flow)
    assert not facts.failures
    return facts, flow


def gradients(found: Program) -> tuple[dict[Name, Local], set[Rule]]:
    """The gradients of all functions' values, and the rules that the backward walk finds broken."""
    facts, flow = typed(found)
    all_of: dict[Name, Local] = {}
    for function in reversed(found.functions):
        all_of = backward(facts, flow.typed[function.number], flow) | all_of  # of a value that travels, the reader's
    return all_of, set(facts.failures.values())


def broken(found: Program) -> set[Rule]:
    return gradients(found)[1]


def with_function(found: Program, number: int, change: Callable[[Function], Function]) -> Program:
    functions = (change(f) if f.number == number else f for f in found.functions)
    return replace(found, functions=tuple(functions))


def with_instr(found: Program, change: Callable[[Instr], Instr]) -> Program:
    """The program with `change` of each instruction; one of them must differ."""

    def changed(function: Function) -> Function:
        sections = (replace(s, body=tuple(map(change, s.body))) for s in function.sections)
        return replace(function, sections=tuple(sections))

    other = replace(found, functions=tuple(map(changed, found.functions)))
    assert other.functions != found.functions
    return other


def writing(name: str, change: Callable[[Var], Var]) -> Callable[[Instr], Instr]:
    """The instruction with `change` of its result of this name."""

    def changed(instr: Instr) -> Instr:
        if isinstance(instr, OpPart):
            return replace(instr, results=tuple(change(v) if str(v.name) == name else v for v in instr.results))
        if isinstance(instr, Conversion) and str(instr.result.name) == name:
            return replace(instr, result=change(instr.result))
        return instr

    return changed


def in_time(found: Program, kind: type[Step]) -> list[Conversion]:
    """The conversions that take a step of this kind in time."""
    every = (i for f in found.functions for i in f.body() if isinstance(i, Conversion))
    return [i for i in every if any(isinstance(s, kind) and s.in_time for s in i.forward)]


# -- what is derived ---------------------------------------------------------------------------------------------------


def test_a_gradient_has_the_digits_of_its_value() -> None:
    found, rules = gradients(split())
    assert not rules
    assert found[Name("r")] == Local(frozenset({(TP, LocalDigit(1, 2, 2))})) and found[Name("y", 1)] == Local()


def test_an_operand_without_the_split_dimension_gets_an_addend() -> None:
    found, rules = gradients(staged())
    assert not rules
    assert found[Name("w")].partial == found[Name("v")].partial == {M} and found[Name("r")].partial == frozenset()


def test_an_operator_that_is_not_split_hands_on_an_addend() -> None:
    """The transposed weight runs in each task, its result's gradient is an addend of each, and so is the weight's."""
    text = CHAIN.replace("weight w[mid, out]", "weight u[out, mid]\n    w[mid, out] = t u[out, mid]")
    found, rules = gradients(program(text, {"batch": "m 2"}))
    assert not rules and found[Name("w")].partial == found[Name("u")].partial == {M}


def test_behind_the_first_part_s_addend_the_gradient_is_an_addend_too() -> None:
    lowered = program(PENALTY, {"batch": "m 2"})
    (first,) = in_time(lowered, KeepFirst)
    found, rules = gradients(lowered)
    assert not rules and first.source == Name("p") and found[first.source].partial == {M}


def test_behind_a_part_the_gradient_is_an_addend_of_the_whole() -> None:
    lowered = program(ROWS, {"batch": "m 2"})
    assert any(i.source == Name("u") for i in in_time(lowered, Narrow))
    found, rules = gradients(lowered)
    assert not rules and found[Name("u")] == Local(partial=frozenset({M}))


# -- what is refuted ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["r", "y@1", "q"])
def test_a_value_with_a_gradient_is_written_with_one(name: str) -> None:
    assert Rule.NO_GRADIENT in broken(with_instr(split(), writing(name, lambda v: replace(v, gradient=None))))


def test_a_value_to_which_no_gradient_comes_is_written_without_one() -> None:
    """A weight of another function, of the same devices."""
    found = program(CHAIN, {"y.batch": "m 2", "q.batch": "m 2", "loss.batch": "m 2"})
    first, second = found.functions
    other = with_function(found, 1, lambda f: replace(f, parameters=(*first.parameters, *second.parameters)))
    assert broken(found) == set() and broken(other) == {Rule.NO_GRADIENT}


def test_a_gradient_that_comes_back_is_written_at_the_output() -> None:
    hidden = with_function(
        staged(), 0, lambda f: replace(f, outputs=tuple(replace(o, gradient=False) for o in f.outputs))
    )
    assert broken(hidden) == {Rule.NO_GRADIENT}


def test_an_input_says_whether_a_gradient_flows_back() -> None:
    hidden = with_function(
        staged(), 1, lambda f: replace(f, inputs=tuple(replace(i, gradient=False) for i in f.inputs))
    )
    assert broken(hidden) == {Rule.NO_GRADIENT}


def test_a_transfer_brings_the_gradient_back() -> None:
    found = staged()
    messages = tuple(replace(m, backward=None) for m in found.messages if isinstance(m, Transfer))
    assert Rule.NO_GRADIENT in broken(replace(found, messages=messages))


def test_the_type_written_at_a_gradient_is_the_one_that_it_gets() -> None:
    def whole(function: Function) -> Function:
        given = (replace(p, var=replace(p.var, gradient=p.var.type)) for p in function.parameters)
        return replace(function, parameters=tuple(given))

    assert broken(with_function(staged(), 1, whole)) == {Rule.GRADIENT}


def test_an_operator_is_given_no_addend_along_its_own_split() -> None:
    """The sum over devices is whole behind the all_reduce, and so must be what comes back to each addend."""

    def keeping(instr: Instr) -> Instr:
        if isinstance(instr, Conversion):
            return replace(instr, backward=(KeepFirst(("tp",), 48),))
        return writing("y", lambda v: replace(v, gradient=replace(v.type, layout=Layout((PARTIAL,)))))(instr)

    assert broken(with_instr(split(), keeping)) == {Rule.PARTIAL_GRADIENT}


def test_a_part_is_given_no_addend_along_its_own_index() -> None:
    """As if a reader of the part returned a sum over all of them."""
    found = program(ROWS, {"batch": "m 2"})
    (part,) = (i for i in in_time(found, Narrow) if i.source == Name("u"))
    left = FunctionOutput(part.result.name, "part", True)
    found = with_function(found, 0, lambda f: replace(f, outputs=(*f.outputs, left)))
    facts, flow = typed(found)
    owed = flow.typed[0].types[part.result.name].owing(M)
    flow.returned[0, part.result.name] = [(owed, "a reader")]
    backward(facts, flow.typed[0], flow)
    assert Rule.PARTIAL_GRADIENT in facts.failures.values()


FORK = """
    input x[batch, in]
    weight v[in, mid]
    weight w[mid, out]
    h[batch, mid] = mm x[batch, in] v[in, mid]
    a[batch, out] = mm h[batch, mid] w[mid, out]
    b[batch, mid] = relu h[batch, mid]
    s[] = sum a[batch, out]
    t[] = sum b[batch, mid]
    loss[] = add s[] t[]
"""


def without_way_back(found: Program) -> Program:
    return with_instr(found, lambda i: replace(i, backward=()) if isinstance(i, Conversion) and i.backward else i)


def test_addends_of_a_gradient_are_of_one_type() -> None:
    """One reader returns an addend of each device, the other one the same on each."""
    assert Rule.UNLIKE in broken(without_way_back(program(FORK, {"out": "tp 2"})))


def test_a_gradient_comes_back_to_the_part_that_its_value_is() -> None:
    """What was gathered is scattered again."""
    found = program(CHAIN, {"h.mid": "tp 2", "r.mid": "tp 2"})
    assert Rule.RESULT in broken(without_way_back(found))


@pytest.mark.parametrize(
    ("way", "rules"),
    [
        (Backward.WHOLE, set()),
        (Backward.HALVES, set()),
        (Backward.NONE, {Rule.BACKWARD}),
        (Backward.DGRAD, {Rule.BACKWARD}),  # it has weights, whose gradients would be lost
    ],
)
def test_a_function_with_weights_runs_its_backward_whole_or_in_halves(way: Backward, rules: set[Rule]) -> None:
    assert broken(with_function(split(), 0, lambda f: replace(f, backward=way))) == rules


def test_a_function_of_a_program_that_does_not_train_runs_none() -> None:
    trained = split()
    found = lower(trained.plan, held=Held(trained.params, trained.flats), trains=False)
    assert gradients(found) == ({}, set())
    assert broken(with_function(found, 0, lambda f: replace(f, backward=Backward.WHOLE))) == {Rule.BACKWARD}


# -- between functions -------------------------------------------------------------------------------------------------


def test_a_gradient_that_is_the_same_in_every_task_is_not_added_once_per_task() -> None:
    """The weights' sum is made once; each part of the reader returns one addend of its gradient."""
    text = CHAIN.replace("mul y[batch, out] y[batch, out]", "mul y[batch, out] a[out]")
    text = text.replace("weight w", "weight b[out]\n    a[out] = add b[out] b[out]\n    weight w")
    found = program(text, {"batch": "m 2"}, **dict.fromkeys(("h", "r", "y", "q", "loss", "a"), 1))
    _, flow = typed(found)
    function, given = next((f, i) for f in found.functions for i in f.inputs if i.var.name == Name("a"))
    flow.give_back(given, function, Local(partial=frozenset({M})))
    assert flow.returned[given.producer, Name("a")] == [(Local(), f"function `{function.name}`")]
    with pytest.raises(Wrong) as wrong:
        flow.give_back(given, function, Local())
    assert wrong.value.rule is Rule.COUNTED


def test_a_gradient_travels_with_its_sums_over_devices_complete() -> None:
    found = staged()
    _, flow = typed(found)
    (given,) = found.functions[1].inputs
    with pytest.raises(Wrong) as wrong:
        flow.give_back(given, found.functions[1], flow.typed[1].types[given.var.name].owing(TP))
    assert wrong.value.rule is Rule.PIECES
