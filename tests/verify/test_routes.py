"""Each element goes once over a slow link, whatever the meshes at its ends, and the plan computes the same."""

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from bench.fuzz.trial import SLOW, try_plan
from ssdsl.cluster.cluster import Cluster
from ssdsl.compile import compile_source
from ssdsl.ir.comm import AllGather, Move, Transfer
from ssdsl.ir.function import Conversion
from ssdsl.ir.layout import Submesh
from ssdsl.ir.program import Program
from ssdsl.record import replace
from ssdsl.runtime.options import Training
from ssdsl.text.source import Source
from tests.captured import captured, graph_of
from tests.verify.host_to_host import CASES, HOSTS, End, plan_of

MODEL = "gpt:tiny,layers=2,hidden=32,heads=4,seq=8,batch=4,vocab=32"
PLAN = """
use pipeline: {schedule}

mesh gpus(pp = 2, tp = 2)

split model by batch into m = 2
split model by heads into tp
split model by ffn into tp
{more}
let stage = balance(model, 2)

assign stage[s] to gpus[pp = s] for s in 0..2
{schedule}(stage, 2)
"""


CUBE = "cube.py:small"


def compiled(spec: str, text: str, cluster) -> Program:
    return compile_source(Source("plan.ssp", text), graph_of(spec), {}, Path(), cluster).program


def sent(program: Program) -> int:
    """Elements that a device sends of the activation that goes from one stage to the other."""
    (moved,) = (m for m in program.messages if isinstance(m, Transfer) and m.backward is not None)
    assert moved.backward is not None
    assert moved.backward.source_shape == moved.forward.target_shape
    return moved.forward.target_shape.numel


def gathers(program: Program) -> int:
    steps = [
        s for f in program.functions for i in f.body() if isinstance(i, Conversion) for s in (*i.forward, *i.backward)
    ]
    return sum(isinstance(s, AllGather) for s in steps)


@pytest.mark.thinned(6)
@pytest.mark.parametrize("schedule", ["one_f_one_b", "zb_h1"])
def test_each_device_sends_a_share(schedule: str) -> None:
    text = PLAN.format(schedule=schedule, more="")
    plain, shared = (compiled(MODEL, text, cluster) for cluster in (None, SLOW))
    assert sent(plain) == 2 * 8 * 32 and sent(shared) == sent(plain) // 2
    assert gathers(shared) == gathers(plain) + 2  # of the activation there, of its gradient here
    outcome = try_plan(*captured(MODEL), text, Training(2, optimizer="sgd", lr=0.02), SLOW)
    assert outcome.kind == "equal", outcome.text


def test_what_is_cut_already_stays_as_it_is() -> None:
    """With sequence parallelism each device holds its own part."""
    more = "use sequence_parallel: sequence_parallel\nsequence_parallel(model)"
    text = PLAN.format(schedule="one_f_one_b", more=more)
    plain, shared = (compiled(MODEL, text, cluster) for cluster in (None, SLOW))
    assert sent(plain) == sent(shared) == 2 * 8 * 32 // 2


# -- one tensor between any two meshes ---------------------------------------------------------------------------------

CUTS = {  # those of Zhuang et al. 2023, and others
    **{f"case {name}": ends for name, ends in CASES.items() if name != "7, 8"},
    "rows by devices to whole": (End(1, 4, {"i": "d"}), End(1, 4, {})),
    "devices of another number": (End(1, 4, {}), End(2, 2, {"i": "h"})),
    "into one device": (End(1, 4, {"i": "d"}), End(1, 1, {})),
}


def crossing(move: Move, source: Submesh, target: Submesh, cluster: Cluster = HOSTS) -> Counter[int]:
    """The elements that each host gets from other hosts."""
    found: Counter[int] = Counter()
    for ranks, elements in move.paths(source, target):
        for sender, receiver in pairwise(ranks):
            if cluster.node(sender) != cluster.node(receiver):
                found[cluster.node(receiver)] += elements
    return found


def test_without_routes_values_travel_as_they_lie() -> None:
    text = plan_of(*CUTS["case 1"])
    plain, routed = (compiled(CUBE, text, replace(HOSTS, routes=on)) for on in (False, True))
    whole, once = (
        [sum(crossing(m.forward, m.source, m.target).values()) for m in p.messages if isinstance(m, Transfer)]
        for p in (plain, routed)
    )
    assert whole == [4 * n for n in once] and str(plain) == str(compiled(CUBE, text, None))


@pytest.mark.parametrize("name", CUTS)
def test_each_element_once(name: str) -> None:
    source, target = CUTS[name]
    text = plan_of(source, target)
    program = compiled(CUBE, text, HOSTS)
    (message,) = (m for m in program.messages if isinstance(m, Transfer) and m.backward is not None)
    assert message.backward is not None
    for move, ends, there in (
        (message.forward, (message.source, message.target), target),
        (message.backward, (message.target, message.source), source),
    ):
        share = there.of_host if there.devices == 4 else 1.0  # the hosts of a smaller mesh are one
        assert {*crossing(move, *ends).values()} == {48 * 8 * 8 * share}
    outcome = try_plan(*captured(CUBE), text, Training(2, optimizer="sgd", lr=0.02), HOSTS)
    assert outcome.kind == "equal", outcome.text


# -- one conversion for all readers ------------------------------------------------------------------------------------


def test_readers_share_a_gather_though_their_gradients_go_back_differently() -> None:
    """A residual block behind a layer that is cut along the batch: the block gives addends of the gradient, the sum
    beside it a whole one."""
    text = """
mesh gpus(tp = 2)
let inner = model["up"] | model["down"] | model["norm"]
split inner by ffn into tp
split model["a"] | model["out"] by batch into tp
assign model to gpus
"""
    program = compiled("residual.py:residual", text, None)
    whole = [
        i for f in program.functions for i in f.body() if isinstance(i, Conversion) and i.result.name.value == "linear"
    ]
    assert [(len(i.forward), [s.kind for s in i.backward]) for i in whole] == [
        (1, ["reduce_scatter"]),
        (0, ["keep_first"]),
    ]
    outcome = try_plan(*captured("residual.py:residual"), text, Training(2, optimizer="sgd", lr=0.02))
    assert outcome.kind == "equal", outcome.text
