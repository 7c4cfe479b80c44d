"""Each element goes once over a slow link, whatever the meshes at its ends, and the plan computes the same."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from bench.fuzz.trial import SLOW, try_plan
from ssdsl.cluster.load import load_cluster
from ssdsl.compile import compile_source
from ssdsl.ir.comm import AllGather, Move, Transfer, kind_of
from ssdsl.ir.function import Reshard
from ssdsl.ir.layout import Submesh
from ssdsl.ir.program import Program
from ssdsl.model.load import load
from ssdsl.model.trace import capture
from ssdsl.run.launch import Training
from ssdsl.text.source import Source

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


@pytest.fixture(scope="module")
def model():
    return load(MODEL)


def compiled(model, text: str, cluster) -> Program:
    return compile_source(Source("plan.ssp", text), capture(model), {}, Path(), cluster).program


def sent(program: Program) -> int:
    """Elements that a device sends of the activation that goes from one stage to the other."""
    (moved,) = (m for m in program.messages if isinstance(m, Transfer) and m.backward is not None)
    assert moved.backward is not None
    assert moved.backward.source_shape == moved.forward.target_shape
    return moved.forward.target_shape.numel


def gathers(program: Program) -> int:
    steps = [
        s for f in program.functions for i in f.body() if isinstance(i, Reshard) for s in (*i.forward, *i.backward)
    ]
    return sum(isinstance(s, AllGather) for s in steps)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("schedule", ["one_f_one_b", "zb_h1"])
def test_each_device_sends_a_share(model, schedule: str) -> None:
    text = PLAN.format(schedule=schedule, more="")
    plain, shared = (compiled(model, text, cluster) for cluster in (None, SLOW))
    assert sent(plain) == 2 * 8 * 32 and sent(shared) == sent(plain) // 2
    assert gathers(shared) == gathers(plain) + 2  # of the activation there, of its gradient here
    outcome = try_plan(model, capture(model), text, Training(2, optimizer="sgd", lr=0.02), SLOW)
    assert outcome.kind == "equal", outcome.text


def test_what_is_cut_already_stays_as_it_is(model) -> None:
    """With sequence parallelism each device holds its own part."""
    more = "use sequence_parallel: sequence_parallel\nsequence_parallel(model)"
    text = PLAN.format(schedule="one_f_one_b", more=more)
    plain, shared = (compiled(model, text, cluster) for cluster in (None, SLOW))
    assert sent(plain) == sent(shared) == 2 * 8 * 32 // 2


# -- one tensor between any two meshes ---------------------------------------------------------------------------------

MODELS = Path(__file__).parent.parent / "models"
HOSTS = load_cluster(str(MODELS / "hosts.toml"))  # of 4 devices, with slow links between them
FIRST, SECOND = "mesh first(h0 = {}, d0 = {})", "mesh second(h1 = {}, d1 = {})"
CUTS = {  # the meshes' hosts and devices, and which dimensions are cut: those of Zhuang et al. 2023, table 2
    "rows by hosts": ((2, 4), {"i": "h"}, (2, 4), {"i": "h"}),
    "whole to rows by hosts": ((2, 4), {}, (2, 4), {"i": "h"}),
    "columns to rows by hosts": ((2, 4), {"j": "h"}, (2, 4), {"i": "h"}),
    "columns to rows by all": ((2, 4), {"j": "hd"}, (2, 4), {"i": "hd"}),
    "rows by devices to rows by hosts": ((2, 4), {"i": "d"}, (2, 4), {"i": "h"}),
    "two hosts to three": ((2, 4), {"i": "h"}, (3, 4), {"i": "h"}),
    "rows by devices to whole": ((1, 4), {"i": "d"}, (1, 4), {}),
    "columns to planes": ((2, 4), {"j": "h"}, (2, 4), {"k": "h"}),
    "devices of another number": ((1, 4), {}, (2, 2), {"i": "h"}),
    "into one device": ((1, 4), {"i": "d"}, (1, 1), {}),
}


def plan_of(source: tuple[int, int], cut: dict[str, str], target: tuple[int, int], wanted: dict[str, str]) -> str:
    lines = [FIRST.format(*source), SECOND.format(*target), 'let b = model["b"]', "let a = model - b"]
    lines += [f"split a by {dim} into {axis}0" for dim, axes in cut.items() for axis in axes]
    lines += [f"split b by {dim} into {axis}1" for dim, axes in wanted.items() for axis in axes]
    return "\n".join([*lines, "assign a to first", "assign b to second"])


def crossing(move: Move, source: Submesh, target: Submesh) -> Counter[int]:
    """The elements that each host gets from other hosts."""
    found: Counter[int] = Counter()
    for sender, receiver, elements in move.pairs(source, target):
        if HOSTS.node(sender) != HOSTS.node(receiver):
            found[HOSTS.node(receiver)] += elements
    return found


@pytest.fixture(scope="module")
def cube():
    return load(f"{MODELS / 'cube.py'}:cube")


def test_without_routes_values_travel_as_they_lie(cube) -> None:
    text = plan_of(*CUTS["rows by hosts"])
    plain, routed = (compiled(cube, text, replace(HOSTS, routes=on)) for on in (False, True))
    whole, once = (
        [sum(crossing(m.forward, m.source, m.target).values()) for m in p.messages if isinstance(m, Transfer)]
        for p in (plain, routed)
    )
    assert whole == [4 * n for n in once] and str(plain) == str(compiled(cube, text, None))


@pytest.mark.parametrize("name", CUTS)
def test_each_element_once(cube, name: str) -> None:
    source, cut, target, wanted = CUTS[name]
    text = plan_of(source, cut, target, wanted)
    program = compiled(cube, text, HOSTS)
    (message,) = (m for m in program.messages if isinstance(m, Transfer) and m.backward is not None)
    assert message.backward is not None
    elements = 48 * 8 * 8
    for move, ends, (hosts, devices), cuts in (
        (message.forward, (message.source, message.target), target, wanted),
        (message.backward, (message.target, message.source), source, cut),
    ):
        by_hosts = devices == 4 and any("h" in axes for axes in cuts.values())
        assert {*crossing(move, *ends).values()} == {elements // hosts if by_hosts else elements}
    outcome = try_plan(cube, capture(cube), text, Training(2, optimizer="sgd", lr=0.02), HOSTS)
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
    model = load(f"{MODELS / 'residual.py'}:residual")
    program = compiled(model, text, None)
    whole = [
        i for f in program.functions for i in f.body() if isinstance(i, Reshard) and i.result.name.value == "linear"
    ]
    assert [(len(i.forward), [kind_of(s) for s in i.backward]) for i in whole] == [
        (1, ["reduce_scatter"]),
        (0, ["keep_first"]),
    ]
    outcome = try_plan(model, capture(model), text, Training(2, optimizer="sgd", lr=0.02))
    assert outcome.kind == "equal", outcome.text
