"""Rows of operators that are not ssdsl's: from a model's file, from a package; what is wrong with them is said."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ssdsl.codegen.write import program_files
from ssdsl.compile import compile_plan
from ssdsl.model.graph import Graph
from ssdsl.model.load import load
from ssdsl.model.memory.saved import saved
from ssdsl.model.module_to_graph import capture
from ssdsl.model.ops import registry
from ssdsl.model.ops.op import Collective, Op, PartKernel
from ssdsl.record import replace
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.render import render
from tests.model import parts
from tests.model.parts import Lockstep, outside, run_graph
from tests.model.test_rules import check

NAME = "ssdsl_test_lib"  # the package in conftest.py
ERRORS = Path(__file__).parents[2] / "errors"
SPLIT = """
mesh gpus(dp = 2)
split model by batch into dp
assign model to gpus
"""


@pytest.fixture(autouse=True)
def no_rows_stay(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def all_reduce(x: torch.Tensor, op: object = dist.ReduceOp.SUM, group: Lockstep | None = None) -> None:
        assert group is not None
        group.start_all_reduce(x, group)

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    yield
    registry.use_rows("nothing", ())


@pytest.fixture
def graph(package: Path) -> Graph:
    return capture(load(f"{package}/model.py:net"))


def test_its_dimensions_follow_from_the_rows(graph: Graph) -> None:
    own = {o.kind: o for o in graph.operators if o.target.startswith(NAME)}
    assert [o.target for o in own.values()] == [f"{NAME}::{kind}" for kind in ("relu", "project", "centre")]
    assert own["project"].dims[0].name == "batch"
    assert own["centre"].dims[0].combined
    assert own["project"].flops == 2 * 12 * 8 * 4
    assert own["project"].summed(2), "the dimension that the results lack adds up"


def test_a_part_computes_what_the_operator_computes(
    graph: Graph,
    library: ModuleType,
    package: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(parts.CODE, NAME, library)
    model = load(f"{package}/model.py:net")
    values = run_graph(graph, outside(graph, model.module, model.batches[0]))
    torch.testing.assert_close(values[graph.loss], model.module(**model.batches[0]))
    for operator in (o for o in graph.operators if o.target.startswith(NAME)):
        check(graph, operator, values, random.Random(0))


def test_what_it_saves_is_measured(graph: Graph) -> None:
    own = {o.kind: o for o in graph.operators if o.target.startswith(NAME)}
    found = {kind: saved(o, graph) for kind, o in own.items()}
    assert found["project"].inputs == tuple(range(len(own["project"].inputs)))
    assert not found["relu"].inputs and not found["relu"].extras


def test_a_program_calls_it_by_its_full_name(graph: Graph, tmp_path: Path) -> None:
    """A custom operator `relu` that returns -x is not torch.relu."""
    (tmp_path / "plan.ssp").write_text(SPLIT)
    files = program_files(compile_plan(tmp_path / "plan.ssp", graph, {}).program)
    (text,) = (t for name, t in files.items() if name.startswith("role"))
    assert f"import {NAME}\n" in text
    assert f"torch.ops.{NAME}.relu.default(" in text and "torch.relu" not in text
    assert f"{NAME}.centre_part(" in text


@pytest.mark.slow
def test_a_program_trains_on_what_one_device_trains_on(package: Path, tmp_path: Path) -> None:
    (tmp_path / "plan.ssp").write_text(SPLIT)
    command = [
        sys.executable,
        "-m",
        "ssdsl",
        "verify",
        str(tmp_path / "plan.ssp"),
        "--model",
        f"{package}/model.py:net",
    ]
    path = os.pathsep.join([str(Path.cwd()), *filter(None, [os.environ.get("PYTHONPATH")])])  # not the package
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path})
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)


def test_a_missing_row_is_shown_to_be_pasted(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_unknown", lambda target: None)
    with pytest.raises(PlanError) as caught:
        capture(load(f"{package}/model.py:unknown"))
    (problem,) = caught.value.diagnostics
    text = render(problem)
    row = next(line.strip() for line in text.splitlines() if "OPS = [" in line)
    scope: dict[str, Any] = {"ssdsl": __import__("ssdsl")}
    exec(row, scope)
    (op,) = scope["OPS"]
    assert (op.name, op.module) == (f"{NAME}::unknown", NAME)
    registry.use_rows("the pasted row", scope["OPS"])
    assert registry.find(f"{NAME}::unknown") is op


def test_without_a_row_it_is_whole_and_a_warning_names_the_command(
    package: Path, tmp_path: Path, golden: Callable[[Path, str], None]
) -> None:
    (tmp_path / "plan.ssp").write_text(SPLIT)
    model = load(f"{package}/model.py:unknown")
    plan = compile_plan(tmp_path / "plan.ssp", replace(capture(model), name="model.py:unknown"), {})
    (warning,) = (d for d in plan.warnings if d.code == "E0383")
    golden(ERRORS / "E0383.err", render(warning).replace(f"{tmp_path}/", "") + "\n")
    registry.use_rows("a row", [Op(f"{NAME}::unknown", "a! b! -> a! b!", module=NAME)])
    assert not compile_plan(tmp_path / "plan.ssp", capture(model), {}).warnings


def test_a_script_gives_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_of_script", {})
    row = Op(f"{NAME}::unknown", "a b -> a b", module=NAME)
    registry.add_rows([row])
    registry.use_rows("a file without rows", ())
    assert registry.find(f"{NAME}::unknown") is row and not registry.is_own(row)


def test_a_package_gives_rows_by_an_entry_point(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = [EntryPoint("rows", "ssdsl_test_rows", registry.GROUP)]
    monkeypatch.setattr(registry, "entry_points", lambda group: given if group == registry.GROUP else [])
    registry.rows_of_packages.cache_clear()
    try:
        assert registry.find(f"{NAME}::centre") is not None
        given[0] = EntryPoint("rows", "ssdsl_test_rows:NOTHING", registry.GROUP)
        registry.rows_of_packages.cache_clear()
        with pytest.raises(PlanError) as caught:
            registry.find(f"{NAME}::centre")
        assert [d.code for d in caught.value.diagnostics] == ["E0335"]
    finally:
        monkeypatch.undo()
        registry.rows_of_packages.cache_clear()


KERNEL = PartKernel(("x", 0), "lib.part({x}, {group})", (Collective(1),), (), "")


def with_kernel(**changes: Any) -> Op:
    return Op("lib::scan", "a* -> a*", module="lib", kernel=replace(KERNEL, **changes))


HALF_THERE: dict[str, Callable[[], object]] = {
    "give its full name": lambda: Op("scan", "a -> a"),
    "names no Python module": lambda: Op("lib::scan", "a -> a"),
    "a signature is written": lambda: Op("lib::scan", "a, b", module="lib"),
    "is no letter": lambda: Op("lib::scan", "a$ -> a$", module="lib"),
    "no input has the dimension `b`": lambda: Op("lib::scan", "a -> b", module="lib"),
    "needs a `kernel`": lambda: Op("lib::scan", "a* -> a*", module="lib"),
    "names no collective": lambda: with_kernel(forward=()),
    "hands over no {group}": lambda: with_kernel(call="lib.part({x})"),
    "is not in `lib`": lambda: with_kernel(call="x.part({group})"),
    "is no call": lambda: with_kernel(call="lib.part"),
    "a parameter and an axis": lambda: with_kernel(axis="x"),
    "`mean` names axes": lambda: Op("lib::loss", "a -> _", module="lib", mean="the rows"),
    "a tuple of texts": lambda: Op("lib::scan", "a -> a", module="lib", linear_in="x"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("fact", HALF_THERE)
def test_a_row_that_is_half_there_is_refused(fact: str) -> None:
    with pytest.raises(ValueError, match=fact.replace("{", r"\{")):
        HALF_THERE[fact]()


def test_a_kernel_says_what_it_communicates_and_saves() -> None:
    with pytest.raises(ValueError, match="what it communicates and saves"):
        with_kernel(forward=None)


def test_a_row_that_does_not_fit(package: Path, golden: Callable[[Path, str], None]) -> None:
    texts = []
    for what, dims in {
        "axes": "a -> a",
        "operands": "... , ... -> ...",
        "a function": lambda call: call.shapes[7],
        "a mean": "a b -> _",
    }.items():
        model = load(f"{package}/model.py:unknown")
        mean = "x.0" if what == "a mean" else ""
        registry.use_rows("a row", [Op(f"{NAME}::unknown", dims, module=NAME, mean=mean)])  # type: ignore[arg-type]
        with pytest.raises(PlanError) as caught:
            capture(model)
        texts += [f"# {what}", *map(render, caught.value.diagnostics), ""]
    golden(ERRORS / "E0334.err", "\n".join(texts))


def test_what_is_no_row(golden: Callable[[Path, str], None]) -> None:
    cases: dict[str, object] = {"no rows": ["lib::scan"], "known": [Op("aten::relu", "... -> ...")]}
    texts = []
    for what, given in cases.items():
        with pytest.raises(PlanError) as caught:
            registry.use_rows("`OPS` of `model.py`", given)
        texts += [f"# {what}", *map(render, caught.value.diagnostics), ""]
    golden(ERRORS / "E0335.err", "\n".join(texts))
