"""An exchange goes over the links between those who send to each other: halos cross nodes at their border alone."""

import itertools

import pytest

from bench.fuzz.trial import SLOW
from ssdsl.analyse.collectives import of_task
from ssdsl.analyse.program_index import ProgramIndex
from ssdsl.compile import compile_source
from ssdsl.ir.comm import Exchange
from ssdsl.ir.function import Conversion
from ssdsl.ir.program import Program
from ssdsl.plan.plan import Phase
from ssdsl.simulate.price.network import Network
from ssdsl.text.source import Source
from tests.captured import graph_of
from tests.verify.conftest import HERE

HALO = 2 * 4 * 3 * 8 * 4  # bytes that a neighbour needs: rows, samples, channels, columns, in fp32
INSIDE, ACROSS = HALO / 200e9, HALO / 0.5e9  # seconds on SLOW, of nodes with two devices


def program_of(mesh: str, axes: str) -> Program:
    text = f"mesh gpus({mesh})\nsplit model by height into {axes}\nassign model to gpus\n"
    return compile_source(Source("plan.ssp", text), graph_of("spatial.py:chain"), {}, HERE).program


@pytest.mark.parametrize(
    ("mesh", "axes", "order", "seconds"),
    [
        ("h = 2", "h", (0, 1), INSIDE),
        ("h = 4", "h", (0, 1, 2, 3), INSIDE + ACROSS),  # in the middle, to both sides
        ("node = 2, gpu = 2", "node, gpu", (0, 1, 2, 3), INSIDE + ACROSS),
        ("node = 2, gpu = 2", "gpu, node", (0, 2, 1, 3), 2 * ACROSS),
    ],
)
def test_a_halo_is_charged_where_it_travels(mesh: str, axes: str, order: tuple[int, ...], seconds: float) -> None:
    program = program_of(mesh, axes)
    (function,) = program.functions
    steps = [s for i in function.body() if isinstance(i, Conversion) for s in i.forward if isinstance(s, Exchange)]
    pairs = {(a, b) for step in steps for a, b, _ in step.sends()}
    neighbours = {*itertools.pairwise(order)}
    assert pairs == neighbours | {(b, a) for a, b in neighbours}
    (halo,) = of_task(ProgramIndex(program), function, Phase.FORWARD)
    assert Network(SLOW).collective(halo.call, function.submesh).time_s == pytest.approx(seconds)
