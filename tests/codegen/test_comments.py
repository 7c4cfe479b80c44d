"""Comments of a role's file say where its lines come from, and its table knows the operators' lines."""

import re
from collections.abc import Callable

import pytest

from ssdsl.codegen.role import role_file
from ssdsl.codegen.scope import Common, FileScope
from ssdsl.compile import compile_source
from ssdsl.ir.function import OpPart, reads_of, results_of
from ssdsl.ir.program import Program
from ssdsl.text.source import Source
from tests.captured import graph_of
from tests.prove.conftest import compiled as compiled

PLANS = {"megatron": {"S": 2, "M": 2}, "zero": {"Z": 2}, "zero_bubble": {}, "sequence_parallel": {}}
COMMUNICATES = re.compile(r"\b(all_\w+|reduce_scatter)\(|\bstarted\w*\.wait\(|_parts\(.*\btp[,)]")
TWO_LINES = """\
mesh gpus(tp = 2)
split model["transformer.h.{0-1}"] by heads into tp
split model["transformer.h.{2-3}"] by heads into tp
assign model to gpus
"""


@pytest.mark.parametrize("plan", PLANS)
def test_lines_are_those_of_their_instructions(compiled: Callable[..., Program], plan: str) -> None:
    program = compiled(plan, "gpt:tiny,layers=4", **PLANS[plan])
    for role in program.roles:
        file = role_file(FileScope(Common(program), role))
        lines = file.text.splitlines()
        for (number, _, line), instr in file.instructions.items():
            code, _, comment = lines[line - 1].partition("  # ")
            assert isinstance(instr, OpPart) == (line in file.operators)
            assert code.count(" = ") and (results_of(instr) or reads_of(instr)) and number < len(program.functions)
            assert bool(comment) == bool(COMMUNICATES.search(code)), lines[line - 1]
        instructions = {instr for f in program.functions_of(role) for instr in f.body()}
        assert instructions <= {*file.instructions.values()}


def test_two_statements_of_layers_that_share_a_function() -> None:
    program = compile_source(Source("plan.ssp", TWO_LINES), graph_of("gpt:tiny,layers=4"), {}, None).program
    text = role_file(FileScope(Common(program), program.roles[0])).text
    assert "y_4 = transformer_h(y_3, " in text
    said = [f"plan.ssp:{n}: {TWO_LINES.splitlines()[n - 1]}" for n in (2, 3)]
    assert f"  # transformer.h.*.attn.c_proj addmm; {' or '.join(said)}\n" in text
