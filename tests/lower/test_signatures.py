"""What is found once for equal calls is what would be found for each of them alone."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

import ssdsl
from ssdsl.ir.program import Program
from ssdsl.ir.text.program import program_text
from ssdsl.lang.parse import parse
from ssdsl.lower.lower import lower
from ssdsl.model.module_to_graph import capture
from ssdsl.plan.interpret import interpret_all
from ssdsl.plan.plan import Plan
from ssdsl.prove.prove import prove
from ssdsl.record import replace
from ssdsl.text.source import Source
from tests.ir.conftest import HERE, graph_of
from tests.ir.conftest import program_of as program_of  # the programs of tests/ir/programs

PROGRAMS = sorted(path.stem for path in (HERE / "programs").glob("*.ssp"))
DATA = "mesh gpus(dp = 2)\nsplit model by batch into dp\nassign model to gpus\n"


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Callable[[Plan], Program]:
    """The program of a plan in which each call has a signature of its own."""

    def lowered(plan: Plan) -> Program:
        monkeypatch.setattr(
            "ssdsl.model.signatures.signatures", lambda graph: {o.name: n for n, o in enumerate(graph.operators)}
        )
        return lower(replace(plan, graph=replace(plan.graph)))

    return lowered


@pytest.mark.thinned(9)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, program_of: Callable[[str], Program], alone: Callable[[Plan], Program]) -> None:
    program = program_of(name)
    source = Source(name, (HERE / "programs" / f"{name}.ssp").read_text("utf-8"))
    model = source.text.partition("\n")[0].removeprefix("# model: ")
    plan = interpret_all(parse(source), graph_of(model), {}, HERE / "programs")[0]
    assert program_text(alone(plan)) == program_text(program)


class Swapped(nn.Module):
    """Two equal calls, of which one reads the sum over the batch first and the other one last."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.scale = nn.Linear(4, 4), nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total, penalty = self.lin(x).square().sum(), self.scale.square().sum()
        return total * penalty + penalty * total


def test_operands_that_change_places(alone: Callable[[Plan], Program]) -> None:
    model = ssdsl.model_of(Swapped(), {"x": torch.randn(4, 4)}, {"x": ("batch", "feature")})
    plan = interpret_all(parse(Source("plan.ssp", DATA)), capture(model))[0]
    program = lower(plan)
    assert prove(program).failures == ()
    assert program_text(alone(plan)) == program_text(program)
