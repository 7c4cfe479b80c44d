"""What `python -m bench same` calls equal byte for byte, equal up to names, another program, and worse."""

import doctest
import json
from typing import Any

import pytest
import torch

import bench.compile_against
import bench.same.compare
import bench.same.names
from bench.compile_against import per_action, per_operator
from bench.same.checkouts import Answer
from bench.same.compare import Files, Level, Side, answer_level, compared, equal_to_the_bit
from bench.same.names import Names, same_code, same_json, same_program, same_tasks

CODE = '''"""What gpus[pp = 0] computes."""

from runtime import Output, block


@block(number=0, outputs=(Output("tanh"),))
def block0(x, weights, m):
    """layers.0: 2 operators."""
    with weights.under() as w:
        x_2 = take(x, 0, 1, 3, m)
        linear = F.linear(x_2, w["layers.0.weight"], w["w_1"])
        return (torch.tanh(linear),)


def step(run):
    run.forward(block0, m=0)
    run.free("tanh", 0)
'''
PROGRAM = """function block0 over (m: 2)
  parameter %w_1 : f32[8, 8]
  section
    %x@1 = part<m>(dim 0) %x : f32[4, 8]
    %tanh = mul(%x@1, %w_1) saves %tanh : f32[4, 8]
  return %tanh in slot "tanh"

role gpus_pp0
  forward block0[m = 0]
  free "tanh"[m = 0]
"""
TABLE = {
    "inputs": {"x": {"dtype": "float32"}},
    "roles": [{"name": "gpus_pp0", "inputs": [{"name": "x"}], "others": [], "flats": [{"weights": [{"name": "w_1"}]}]}],
    "messages": [{"value": "tanh", "source_slot": "tanh", "plan": "plan.ssp:1"}],
}


def changed(text: str, *words: tuple[str, str]) -> str:
    for old, new in words:
        assert old in text
        text = text.replace(old, new)
    return text


def names() -> Names:
    return Names(frozenset({"w_1", "layers.0.weight", "gpus_pp0"}))


@pytest.mark.parametrize(
    "words",
    [
        [("x_2", "x_3")],
        [("linear = ", "y = "), ("(linear)", "(y)")],
        [("block0", "block2")],
        [("block0", "layer")],
        [('"tanh"', '"tanh_3"')],
        [("under() as w:", "under() as held:"), (' w["', ' held["')],
    ],
)
def test_code_is_the_same_up_to_names(words: list[tuple[str, str]]) -> None:
    assert same_code(CODE, changed(CODE, *words), names())


@pytest.mark.parametrize(
    "words",
    [
        [("x_2 = ", "x_3 = ")],  # what is read then is bound nowhere
        [("(x_2", "(x")],
        [('Output("tanh")', 'Output("tanh_3")')],
        [('"w_1"', '"w_2"')],  # another weight
        [("layers.0.weight", "layers.1.weight")],
        [("take(x, 0, 1", "take(x, 0, 2")],
        [("torch.tanh", "torch.sin")],
        [("m=0", "k=0")],
        [("    run.free", "    run.free('x', 0)\n    run.free")],
        [("weights, m", "m, weights")],
        [("weights, m)", "weights, n)"), (", m)\n", ", n)\n")],  # callers say it by name
    ],
)
def test_code_is_another(words: list[tuple[str, str]]) -> None:
    assert not same_code(CODE, changed(CODE, *words), names())


@pytest.mark.parametrize(
    ("words", "same"),
    [
        ([("x@1", "x@2")], True),
        ([("%tanh", "%mul")], True),
        ([("block0", "block3")], True),
        ([('"tanh"', '"tanh_3"')], True),
        ([("f32", "f16")], False),
        ([("%w_1", "%w_2")], False),
        ([("forward block0", "forward block3")], False),
        ([('slot "tanh"', 'slot "tanh_3"')], False),
        ([("mul(%x@1", "mul(%x")], False),
        ([("gpus_pp0", "gpus_pp1")], False),
    ],
)
def test_printed_programs(words: list[tuple[str, str]], same: bool) -> None:
    assert same_program(PROGRAM, changed(PROGRAM, *words), names()) is same


def test_names_are_the_same_in_all_texts() -> None:
    """A slot that is renumbered in the code has the new number in the table and in the printed program too."""
    ours, table = names(), json.dumps(TABLE)
    assert same_code(CODE, changed(CODE, ('"tanh"', '"tanh_3"')), ours)
    assert not same_program(PROGRAM, PROGRAM, ours)
    assert not same_json(TABLE, TABLE, ours)
    assert same_program(PROGRAM, changed(PROGRAM, ('"tanh"', '"tanh_3"')), ours)
    assert same_json(TABLE, json.loads(changed(table, ('"source_slot": "tanh"', '"source_slot": "tanh_3"'))), ours)


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ({"dtype": "float32"}, {"dtype": "float16"}, False),
        ({"step_s": 1.0}, {"step_s": 1.0 + 1e-12}, True),
        ({"step_s": 1.0}, {"step_s": 1.0 + 1e-6}, False),
        ({"shape": [8, 4]}, {"shape": [8, 5]}, False),
        ({"a": 1}, {"a": 1, "b": 1}, False),
        ({"value": "add_1"}, {"value": "add_2"}, True),
        ({"values": ["add_1", "add_2"]}, {"values": ["add_2", "add_2"]}, False),
        ({"is": True}, {"is": 1}, False),
        ({"sites": [{"line": "a_1"}, {"line": "a_1"}]}, {"sites": [{"line": "a_1"}, {"line": "a_2"}]}, True),
        ({"sites": [{"line": "a_1"}]}, {"sites": [{"line": "b_1"}]}, False),
    ],
)
def test_json(old: Any, new: Any, same: bool) -> None:
    assert same_json(old, new, names()) is same


def test_tasks_have_the_numbers_of_blocks() -> None:
    old = {"tasks": [{"role": "gpus_pp0", "order": ["F0[1]", "F1[1]", "B0[1]"]}]}
    swapped = {"tasks": [{"role": "gpus_pp0", "order": ["F1[1]", "F0[1]", "B1[1]"]}]}
    others = [["F1[1]", "F0[1]", "B0[0]"], ["F0[1]", "F0[1]", "B0[1]"]]
    assert same_tasks(old, swapped, names())
    assert not any(same_tasks(old, {"tasks": [{"role": "gpus_pp0", "order": o}]}, names()) for o in others)


# -- levels of a pair -------------------------------------------------------------------------------------------------

RESULT = Answer(0, '{"step_s": 1.0, "peak_bytes": 1000}', "")
REFUSED = Answer(1, "", "error[E0203]: cannot split\n")


def files(code: str = CODE, **more: str) -> Files:
    texts = {"program.json": json.dumps(TABLE), "role.py": code, **more}
    return {name: text.encode() for name, text in texts.items()}


def report(step_s: float, peak_bytes: int) -> Answer:
    return Answer(0, json.dumps({"step_s": step_s, "peak_bytes": peak_bytes}), "")


@pytest.mark.parametrize(
    ("code", "answer", "level"),
    [
        (CODE, RESULT, Level.BYTES),
        (changed(CODE, ("x_2", "x_3")), RESULT, Level.NAMES),
        (CODE, report(1.0 + 1e-12, 1000), Level.NAMES),
        (changed(CODE, ("torch.tanh", "torch.sin")), RESULT, Level.OTHER),
        (CODE, report(0.5, 1000), Level.OTHER),
        (CODE, report(1.0005, 1000), Level.OTHER),
        (CODE, report(1.002, 1000), Level.WORSE),
        (CODE, report(1.0, 1002), Level.WORSE),
        (CODE, REFUSED, Level.WORSE),
        (CODE, Answer(-1, "", "no answer"), Level.WORSE),
        (CODE, Answer(0, RESULT.out, "warning[E0380]: has no place\n"), Level.OTHER),
    ],
)
def test_levels(code: str, answer: Answer, level: Level) -> None:
    found = compared(Side({"simulate": RESULT}, files()), Side({"simulate": answer}, files(code)), {})
    assert found.level is level, found
    assert (found.unlike == ()) is (level is Level.BYTES)


def test_refused_by_both_in_the_same_words_is_equal() -> None:
    assert answer_level("check", REFUSED, REFUSED, names())[0] is Level.BYTES
    other = Answer(1, "", "error[E0204]: another reason\n")
    assert answer_level("check", REFUSED, other, names())[0] is Level.OTHER
    assert answer_level("check", REFUSED, RESULT, names())[0] is Level.WORSE
    does_not_fit = Answer(1, RESULT.out, "error[E0460]\n")
    assert answer_level("check", does_not_fit, REFUSED, names())[0] is Level.WORSE
    assert answer_level("check", Answer(3, "", "bug"), Answer(3, "", "bug"), names())[0] is Level.WORSE


def test_a_file_that_only_one_writes_is_another_program() -> None:
    found = compared(Side({}, files()), Side({}, files(more="")), {})
    assert found.unlike == ((Level.OTHER, "more"),)


def test_a_slot_has_one_number_in_all_files_of_a_program() -> None:
    """An evaluation is a program of its own."""
    table = json.dumps(TABLE)
    tables = {"program.json": changed(table, ('"source_slot": "tanh"', '"source_slot": "tanh_3"')).encode()}
    code = {"role.py": changed(CODE, ('"tanh"', '"tanh_3"')).encode()}
    old = {**files(), "evaluate/program.json": table.encode()}
    evaluation = {f"evaluate/{name}": text for name, text in tables.items()}

    def level(changes: Files) -> Level:
        return compared(Side({}, old), Side({}, {**old, **changes}), {}).level

    assert level(tables | code) is Level.NAMES
    assert level(evaluation) is Level.NAMES
    assert level(tables | code | evaluation) is Level.NAMES
    assert level(tables) is Level.OTHER
    assert level(code) is Level.OTHER


def test_the_worst_is_named() -> None:
    new = Side({"simulate": report(1.1, 1000)}, files(changed(CODE, ("x_2", "x_3"))))
    found = compared(Side({"simulate": RESULT}, files()), new, {})
    assert [level for level, _ in found.unlike] == [Level.NAMES, Level.OTHER, Level.WORSE]
    assert found.what == "dearer; 2 lesser differences"


def test_renamed_modules() -> None:
    old = files("from runtime.pulse import Pulse\nfrom ssdsl.runtime.pulse import Pulse\n") | {"runtime/pulse.py": b""}
    new = files("from runtime.beat import Pulse\nfrom ssdsl.runtime.beat import Pulse\n") | {"runtime/beat.py": b""}
    assert compared(Side({}, old), Side({}, new), {"runtime.pulse": "runtime.beat"}).level is Level.BYTES
    assert compared(Side({}, old), Side({}, new), {}).level is Level.OTHER


def test_to_the_bit() -> None:
    nan, zero = float("nan"), torch.zeros(2)
    old = {"grads": [{"w": torch.tensor([1.0, nan])}], "losses": [nan]}
    assert equal_to_the_bit(old, {"grads": [{"w": torch.tensor([1.0, nan])}], "losses": [nan]})
    assert not equal_to_the_bit(zero, -zero)
    assert not equal_to_the_bit(zero, zero.double())
    assert not equal_to_the_bit({"w": zero}, {"w": zero, "b": zero})


def test_slopes() -> None:
    small, large = ({"operators": n, "plan": n * 1e-5 + 1, "lower": n * 2e-5 + 3} for n in (800, 12_000))
    assert per_operator([small, large]) == pytest.approx(3e-5)
    few = {"again_actions": 100, "again_plan": 0.1, "again_lower": 0.2, "again_prove": 0.1}
    more = {"more_actions": 1100, "more_plan": 0.1, "more_lower": 0.21, "more_prove": 0.12}
    assert per_action([few | more]) == pytest.approx(3e-5)


@pytest.mark.parametrize(
    "module", [bench.same.compare, bench.same.names, bench.compile_against], ids=lambda m: m.__name__
)
def test_examples_in_docstrings(module: Any) -> None:
    failed, tried = doctest.testmod(module)
    assert tried and not failed
