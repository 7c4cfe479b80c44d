"""Calls in a role's file name the literals that explain nothing by their place."""

import ast
import inspect
import re
from collections.abc import Iterator

import pytest
import torch

from ssdsl import runtime
from ssdsl.codegen.role import role_file
from ssdsl.codegen.scope import Common, FileScope
from ssdsl.compile import compile_source
from ssdsl.model.ops.op import Op
from ssdsl.model.ops.rows import ROWS
from ssdsl.text.source import Source
from tests.captured import graph_of


def templates(row: Op) -> Iterator[str]:
    yield from (kernel.call for kernel in (row.kernel, row.ring) if kernel is not None)
    yield from (form for form in (row.windows, row.text) if isinstance(form, str) and "{" in form)


CASES = [(row, template) for row in ROWS.values() for template in templates(row)]


@pytest.mark.parametrize(("row", "template"), CASES, ids=[f"{r.name} {t.partition('(')[0]}" for r, t in CASES])
def test_kernels_have_the_parameters_that_their_calls_name(row: Op, template: str) -> None:
    """And defaults for those that are left out as they are None."""
    call = ast.parse(re.sub(r"{(\w+)}", r"\1", template), mode="eval").body
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        return
    parameters = inspect.signature(getattr(runtime, call.func.id)).parameters
    if any(p.kind is p.VAR_POSITIONAL for p in parameters.values()):
        return
    names = [name for name in parameters if name != "ctx"]
    named = [keyword.arg or "" for keyword in call.keywords]
    assert {*names[len(call.args) :]} >= {*named}
    library = getattr(torch.ops, row.name.partition("::")[0])
    packet = getattr(library, row.name.partition("::")[2].partition(".")[0])
    schemas = [getattr(packet, name)._schema for name in packet.overloads()]
    absent = {a.name for s in schemas for a in s.arguments if a.has_default_value() and a.default_value is None}
    required = [name for name in names if parameters[name].default is inspect.Parameter.empty]
    assert {*required} <= {*names[: len(call.args)], *(name for name in named if name not in absent)}


def test_calls_of_torch() -> None:
    text = "mesh gpus(tp = 2)\nsplit model by heads into tp\nsplit model by vocab into tp\nassign model to gpus\n"
    program = compile_source(Source("plan.ssp", text), graph_of("gpt:tiny,layers=4"), {}, None).program
    code = role_file(FileScope(Common(program), program.roles[0])).text
    for line in (
        'c["pad"] = aten.pad.default(c["labels"], [0, 1], value=-100.0)',
        'c["slice_4"] = aten.slice.Tensor(c["pad"], dim=1, start=1)',
        'layer_norm = F.layer_norm(x, [128], w["ln_1.weight"], w["ln_1.bias"], eps=1e-05)',
        ".transpose(1, 2)",
        ".split(64, dim=2)",
        'embedding_part(input_ids, w["transformer.wte.weight"], start=tp.index * 256, size=512)',
        "start=tp.index * 256, size=512, group=tp, reduction=2, ignore_index=-100, label_smoothing=0.0)",
    ):
        assert line in code, line
