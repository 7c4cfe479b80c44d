"""Conversions that start before they are awaited compute the same bits, forward and backward, and all are awaited."""

from collections.abc import Callable, Iterator
from contextlib import chdir
from typing import Any

import pytest
import torch

from ssdsl.compile import compile_source
from ssdsl.ir.function import Section
from ssdsl.ir.program import Program
from ssdsl.lower import lower
from ssdsl.lower.functions.start_conversions import start_conversions
from ssdsl.model.load import load
from ssdsl.prove.prove import prove
from ssdsl.record import replace
from ssdsl.run.in_process.run_in_process import Finished, program_of, run_in_process
from ssdsl.runtime.options import Training
from ssdsl.text.source import Source
from tests.ir.conftest import HERE, _program, graph_of

TRAINING = Training(steps=2, optimizer="sgd", lr=0.1)


def _changed(program: Program, change: Callable[[Section], Section]) -> Program:
    functions = (replace(f, sections=tuple(map(change, f.sections))) for f in program.functions)
    return replace(program, functions=tuple(functions))


def _tensors(dump: Any) -> Iterator[torch.Tensor]:
    if isinstance(dump, torch.Tensor):
        yield dump
    elif isinstance(dump, dict):
        for key in dump:
            yield from _tensors(dump[key])
    elif isinstance(dump, list | tuple):
        for item in dump:
            yield from _tensors(item)


@pytest.mark.parametrize(("plan", "model"), [("beside", "beside"), ("borders", "borders"), ("travelling", "experts")])
def test_no_bit_depends_on_the_start(plan: str, model: str) -> None:
    program = _program(plan)
    assert any(s.in_flight for f in program.functions for s in f.sections)
    blocking = _changed(program, lambda section: replace(section, in_flight=(), kind=None))
    assert prove(blocking).failures == ()
    with chdir(HERE):
        loaded = load(f"models.py:{model}")
    early, late = (run_in_process(program_of(p, loaded), TRAINING) for p in (program, blocking))
    assert early.losses == late.losses
    pairs = [*zip(_tensors(early.dumps), _tensors(late.dumps), strict=True)]
    assert pairs and all(torch.equal(a, b) for a, b in pairs)
    assert early.counts == late.counts


RECOMPUTED = """\
mesh gpus(tp = 2)
split model by ffn into tp
recompute {what}
assign model to gpus
"""


@pytest.mark.parametrize("what", ["model", "model.relu"])
def test_no_bit_depends_on_the_order(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the section is recomputed; nothing is sent more often."""
    with chdir(HERE):
        loaded = load("models.py:beside")

    def run() -> tuple[Program, Finished]:
        program = compile_source(Source("plan.ssp", RECOMPUTED.format(what=what)), graph_of("beside"), {}, None).program
        return program, run_in_process(program_of(program, loaded), TRAINING)

    moved, early = run()
    monkeypatch.setattr(lower, "FORMING", tuple(p for p in lower.FORMING if p is not start_conversions))
    _, late = run()
    assert any(s.in_flight and s.recompute for f in moved.functions for s in f.sections) is (what == "model")
    assert early.losses == late.losses and early.counts == late.counts
    assert all(torch.equal(a, b) for a, b in zip(_tensors(early.dumps), _tensors(late.dumps), strict=True))


def test_a_start_is_a_line_of_its_own() -> None:
    with chdir(HERE):
        written = program_of(_program("borders"), load("models.py:borders"))
    (text,) = {text for text in written.roles.values() if "start_reshard" in text}
    assert "started = start_reshard(relu, forward=[exchange(" in text
    assert "= started.wait()" in text
