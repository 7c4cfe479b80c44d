"""Names of values in a role's file."""

import re

import pytest

from ssdsl.codegen.role import role_file
from ssdsl.codegen.scope import Common, FileScope
from ssdsl.compile import compile_source
from ssdsl.text.source import Source
from tests.captured import graph_of

PLAN = Source("plan.ssp", "mesh gpus(tp = 2)\nsplit model by heads into tp\nassign model to gpus\n")
READS = r"scaled_dot_product_attention.default\(q_\d, k_\d, v_\d,"
CASES = {
    "gpt:tiny,layers=4": ("q, k, v = reshape_3.split(64, dim=2)", "k_2 = k.reshape(", "q_3 = q_2.transpose(1, 2)"),
    # the rotation has two branches, in which values are named after their operators
    "mixtral:tiny": ("q = F.linear(", "q_3 = q_2.transpose(1, 2)", "q_4 = mul_4 + mul_5", "k_7 = k_6.reshape("),
}


@pytest.mark.parametrize("model", CASES)
def test_what_an_attention_reads(model: str) -> None:
    program = compile_source(PLAN, graph_of(model), {}, None).program
    code = role_file(FileScope(Common(program), program.roles[0])).text
    assert all(f" {line}" in code for line in CASES[model]) and re.search(READS, code)
