"""A session on the small GPT, and what it answers as plain text."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from ssdsl.cluster.load import load_cluster
from ssdsl.lang.shipped import plan_path
from ssdsl.model.graph import Graph
from ssdsl.repl.enter import enter
from ssdsl.repl.session import Outside, Session, SimulationTarget, begin
from ssdsl.repl.terminal.offers import offers
from ssdsl.show.view import View, table
from ssdsl.simulate.simulate import simulate
from ssdsl.text.diagnostic import Diagnostic
from ssdsl.text.render import render
from tests.captured import graph_of


def machine(name: str) -> SimulationTarget:
    """What plans are for on a known cluster."""
    cluster = load_cluster(name)
    return SimulationTarget(cluster, lambda program: simulate(program.program, program.source, cluster))


class Entering:
    """A session that goes on with every line."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.failed = self.ended = False

    def __call__(self, text: str) -> str:
        self.session, reply = enter(self.session, text)
        self.failed, self.ended = reply.failed, reply.ends
        out = Console(file=io.StringIO(), width=120)
        for shown in reply.shown:
            if isinstance(shown, Diagnostic):
                out.print(render(shown), markup=False, highlight=False, soft_wrap=True)
            else:
                out.print(table(shown, 120) if isinstance(shown, View) else shown, markup=False, highlight=False)
        assert isinstance(out.file, io.StringIO)
        return out.file.getvalue().rstrip()

    def offered(self, text: str) -> list[str]:
        return [offer.text for offer in offers(self.session, text)]

    @property
    def text(self) -> str:
        return self.session.draft.text


@pytest.fixture(scope="session")
def gpt() -> Graph:
    return graph_of("gpt")


def empty(graph: Graph, folder: Path, **overrides: int) -> Session:
    return begin(graph, overrides, Outside(plan_path, machine("h200x8")), folder)


@pytest.fixture(scope="session")
def megatron(gpt: Graph, tmp_path_factory: pytest.TempPathFactory) -> Session:
    """Seven lines, all but the schedule."""
    entering = Entering(empty(gpt, tmp_path_factory.mktemp("plans")))
    for line in MEGATRON:
        entering(line)
        assert not entering.failed, line
    return entering.session


@pytest.fixture
def enter_(gpt: Graph, tmp_path: Path) -> Entering:
    return Entering(empty(gpt, tmp_path))


@pytest.fixture
def with_four_stages(gpt: Graph, tmp_path: Path) -> Entering:
    """As under `--set S=4`."""
    return Entering(empty(gpt, tmp_path, S=4))


@pytest.fixture
def planned(megatron: Session) -> Entering:
    return Entering(megatron)


MEGATRON = (
    "param S = 2",
    "mesh gpus(pp = S, tp = 2)",
    "split model by batch into m = 4",
    "split model by heads into tp",
    "let stage = balance(model, S)",
    "assign stage[s] to gpus[pp = s] for s in 0..S",
    "use pipeline: one_f_one_b, gpipe",
)
