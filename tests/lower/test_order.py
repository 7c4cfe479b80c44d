"""Orders of tasks: schedules are the textbook's, a circle is an error that names statements, and no order deadlocks."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssdsl.compile import compile_plan, compile_source
from ssdsl.ir.execute import Meet, Steps, execute
from ssdsl.ir.layout import Submesh
from ssdsl.ir.program import Action, Compute, End, Program, Role, ScatterGrads, Start, StartReduce, Wait, WaitReduce
from ssdsl.ir.steps import steps_of
from ssdsl.model.graph import Graph
from ssdsl.plan.plan import Mesh, Phase
from ssdsl.prove.failures import Rule
from ssdsl.prove.prove import prove
from ssdsl.record import replace
from ssdsl.text.diagnostic import InternalError, PlanError
from ssdsl.text.render import render
from ssdsl.text.source import Source
from tests.captured import graph_of

FORWARD, BACKWARD = Phase.FORWARD, Phase.BACKWARD
PIPELINE = """\
use pipeline: gpipe, one_f_one_b
mesh gpus(pp = {S}, dp = {D})
split model by batch into dp, m = {M}
let stage = balance(model, {S})
assign stage[s] to gpus[pp = s] for s in 0..{S}
"""

SIZES = [(1, 4), (2, 1), (2, 2), (2, 4), (2, 8), (3, 4), (4, 2), (4, 4), (4, 8), (4, 16)]  # stages, micro-batches

Compile = Callable[..., Program]


@pytest.fixture(scope="module")
def graph() -> Graph:
    return graph_of(f"{Path(__file__).parent / 'chain.py'}:chain")


@pytest.fixture
def compiled(graph: Graph, tmp_path: Path) -> Compile:
    def compile_text(text: str, **values: int) -> Program:
        (tmp_path / "plan.ssp").write_text(text.format(**values) if values else text)
        return compile_plan(tmp_path / "plan.ssp", graph, {}).program

    return compile_text


def computed(program: Program, role: Role) -> list[tuple[str, int]]:
    """The role's forwards and backwards with their micro-batch; the functions of a stage are one."""
    words = []
    for task in role.computes():
        names = [t.name for t in program.functions[task.function].time]
        micro = task.at[names.index("m")] if "m" in names else 0  # one micro-batch is no index
        words.append(("F" if task.phase is FORWARD else "B", micro))
    return [word for word, _ in groupby(words)]


def one_f_one_b(stages: int, stage: int, micro: int) -> list[tuple[str, int]]:
    """PipeDream-Flush: forwards until the last stage has work, then one forward, one backward, then the rest."""
    ahead = min(stages - stage - 1, micro)
    order = [("F", m) for m in range(ahead)]
    for m in range(micro - ahead):
        order += [("F", ahead + m), ("B", m)]
    return order + [("B", m) for m in range(micro - ahead, micro)]


@pytest.mark.parametrize(("stages", "micro"), SIZES)
def test_one_f_one_b(compiled: Compile, stages: int, micro: int) -> None:
    program = compiled(PIPELINE + "one_f_one_b(stage, {M})\n", S=stages, D=1, M=micro)
    for number, role in enumerate(program.roles):
        assert computed(program, role) == one_f_one_b(stages, number, micro)


@pytest.mark.parametrize(("stages", "micro"), SIZES)
def test_gpipe(compiled: Compile, stages: int, micro: int) -> None:
    program = compiled(PIPELINE + "gpipe(stage, {M})\n", S=stages, D=1, M=micro)
    for role in program.roles:
        assert computed(program, role) == [(phase, m) for phase in "FB" for m in range(micro)]


def test_widths_do_not_change_the_order(compiled: Compile) -> None:
    narrow, wide = (compiled(PIPELINE + "one_f_one_b(stage, {M})\n", S=4, D=d, M=4) for d in (1, 4))
    orders = [
        [[a for a in r.actions if not isinstance(a, ScatterGrads | StartReduce | WaitReduce)] for r in p.roles]
        for p in (narrow, wide)
    ]
    assert orders[0] == orders[1]


# -- circles -----------------------------------------------------------------------------------------------------------


def circle(compiled: Compile, text: str) -> str:
    with pytest.raises(PlanError) as caught:
        compiled(PIPELINE.format(S=2, D=1, M=4) + text)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "E0403"
    return render(diagnostic)


def test_an_order_against_the_data_flow(compiled: Compile) -> None:
    said = circle(compiled, "order stage[1].fwd -> stage[0].fwd\n")
    assert "order stage[1].fwd -> stage[0].fwd" in said
    assert "layers.0" in said and ".fwd[m = " in said


def test_two_statements_that_contradict_each_other(compiled: Compile) -> None:
    first, second = (
        "order stage[0].fwd[m = 1] -> stage[0].fwd[m = 2]",
        "order stage[0].fwd[m = 2] -> stage[0].fwd[m = 1]",
    )
    said = circle(compiled, f"order stage[0].fwd[m = 0] -> stage[0].fwd[m = 3]\n{first}\n{second}\n")
    assert first in said and second in said
    shown, _, _ = said.partition("help:")
    assert "m = 1" in shown and "m = 2" in shown and "m = 3" not in shown


def test_a_circle_through_data_flow_and_a_statement(compiled: Compile) -> None:
    said = circle(compiled, "order stage[1].bwd[m = 2] -> stage[0].fwd[m = 2]\n")
    assert "order stage[1].bwd[m = 2] -> stage[0].fwd[m = 2]" in said
    assert "send" in said and ".bwd[m = 2]" in said


# -- deadlock ----------------------------------------------------------------------------------------------------------

Key = tuple[int, tuple[int, ...], bool]


def finishes(roles: Sequence[Role], together: Callable[[Action], set[str]], draw: random.Random) -> bool:
    """Rendezvous acted out, in random order: an action is done when all the roles that it brings together are at it."""
    left = {r.name: list(r.actions) for r in roles}
    while any(left.values()):
        heads = {name: actions[0] for name, actions in left.items() if actions}
        ready = sorted({a for a in heads.values() if all(heads.get(n) == a for n in together(a))}, key=repr)
        if not ready:
            return False
        chosen = draw.choice(ready)
        for name in together(chosen):
            left[name].pop(0)
    return True


def ends(program: Program, draw: random.Random) -> bool:
    """The step acted out, in random order: a role posts a message and goes on, and waits where it says so.

    Between two roles, the messages of a lane in one direction go one after another, in the order in which each has
    posted them.
    """
    left = {r.name: list(r.actions) for r in program.roles}
    posted: dict[tuple[str, str, int, bool], list[Key]] = {}  # what a role has posted to another, in a lane
    met: dict[Compute, set[str]] = {}

    def goes_on(name: str, action: Action) -> bool:
        match action:
            case Start(number, at, gradient):
                message = program.messages[number]
                for other in taking_part(program, message.source, message.target) - {name}:
                    mine = posted.setdefault((name, other, message.lane, gradient), [])
                    theirs = posted.get((other, name, message.lane, gradient), [])
                    key = number, at, gradient
                    assert len(theirs) <= len(mine) or theirs[len(mine)] == key, "in the same order"
                    mine.append(key)
                return True
            case Wait(number, at, gradient):
                message, key = program.messages[number], (number, at, gradient)
                others = taking_part(program, message.source, message.target) - {name}
                return all(
                    key in posted.get((a, b, message.lane, gradient), [])
                    for o in others
                    for a, b in ((name, o), (o, name))
                )
            case Compute():
                together = met.setdefault(action, set())
                together.add(name)
                return together == taking_part(program, program.functions[action.function].submesh)
            case _:
                return True

    while any(left.values()):
        moved = False
        for name in draw.sample(sorted(left), len(left)):
            while left[name] and goes_on(name, left[name][0]):
                left[name].pop(0)
                moved = True
        if not moved:
            return False
    return True


def taking_part(program: Program, *places: Submesh) -> set[str]:
    """The roles that share a device with some places."""
    inside = {rank for place in places for rank in place.ranks()}
    return {r.name for r in program.roles if inside & {*r.submesh.ranks()}}


PLANS = {
    "no order": "",
    "gpipe": "gpipe(stage, {M})\n",
    "one_f_one_b": "one_f_one_b(stage, {M})\n",
    "all forwards first": "order model.fwd -> model.bwd\n",
    "micro-batches in turn": "order model[m = m].bwd -> model[m = m + 1].fwd for m in 0..{M}\n",
    "backwards turned round": "order stage[s].bwd[m = m + 1] -> stage[s].bwd[m = m] for s in 0..{S}, m in 0..{M}\n",
}


@pytest.mark.parametrize("order", PLANS)
def test_no_order_deadlocks(compiled: Compile, order: str) -> None:
    for stages, devices, micro in [(1, 2, 2), (2, 1, 4), (2, 2, 8), (3, 1, 4), (4, 1, 8)]:
        program = compiled(PIPELINE + PLANS[order], S=stages, D=devices, M=micro)
        assert ends(program, random.Random(0))


UNUSUAL = {
    "stages in turn on two devices": """\
mesh gpus(pp = 2)
split model by batch into m = 4
let stage = balance(model, 4)
assign stage[s] to gpus[pp = s % 2] for s in 0..4
""",
    "there and back": """\
mesh gpus(pp = 3)
split model by batch into m = 4
let stage = balance(model, 5)
assign stage[0] to gpus[pp = 0]
assign stage[1] to gpus[pp = 1]
assign stage[2] to gpus[pp = 2]
assign stage[3] to gpus[pp = 1]
assign stage[4] to gpus[pp = 0]
""",
    "one layer on all": """\
mesh gpus(pp = 2)
let inner = model["layers.3"]
split model - inner by batch into m = 4
split inner by batch into pp, m = 4
let stage = balance(model - inner, 2)
assign stage[s] to gpus[pp = s] for s in 0..2
assign inner to gpus
""",
    "two meshes": """\
mesh few(dp = 2)
mesh many(dp = 4)
split model["layers.0"] | model["layers.1"] by batch into m = 2, dp = 2
let rest = model - (model["layers.0"] | model["layers.1"])
split rest by batch into m = 2, dp = 4
assign model["layers.0"] | model["layers.1"] to few
assign rest to many
""",
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_plans_do_not_deadlock(compiled: Compile, name: str) -> None:
    program = compiled(UNUSUAL[name])
    assert any(isinstance(a, Start) for r in program.roles for a in r.actions)
    assert ends(program, random.Random(0))


def test_two_sends_in_opposite_order_are_named(compiled: Compile) -> None:
    program = compiled(PIPELINE + "gpipe(stage, {M})\n", S=2, D=1, M=4)
    first, second = program.roles
    one, two = [k for k, a in enumerate(first.actions) if isinstance(a, Start) and a.end is End.SEND][:2]
    actions = list(first.actions)
    actions[one], actions[two] = actions[two], actions[one]
    failures = prove(replace(program, roles=(replace(first, actions=tuple(actions)), second))).failures
    (stuck,) = [f for f in failures if f.rule == Rule.DEADLOCK.value]
    assert "`gpus_pp1` at Start(message=0, at=(0,), gradient=False" in stuck.had


def test_a_role_that_never_comes_is_named(compiled: Compile) -> None:
    program = compiled(PIPELINE + "gpipe(stage, {M})\n", S=2, D=1, M=2)
    first, second = program.roles
    short = replace(second, actions=tuple(second.computes()))
    parts = [first, short], program.functions, program.messages, program.flats
    with pytest.raises(InternalError, match=r"gpus_pp0 waits for gpus_pp1 in message 0 of block\d.bwd"):
        execute(steps_of(*parts), lambda role, action: FREE)


@dataclass(frozen=True)
class Free:
    time_s: float = 0.0
    compute_s: float = 0.0
    latency_s: float = 0.0


FREE = Free()


@given(st.data())
def test_the_engine_agrees_with_acting_it_out(data) -> None:
    """Random meetings of two of four roles, each role in an order of its own."""
    ends = data.draw(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=6))
    meetings = [tuple(sorted({*pair})) for pair in ends]
    orders = [data.draw(st.permutations([n for n, m in enumerate(meetings) if p in m])) for p in range(4)]
    starts = [tuple(Start(n, (), False, End.BOTH) for n in order) for order in orders]
    steps = Steps(
        tuple(f"role{p}" for p in range(4)),
        tuple(tuple(Meet(a, a.message, meetings[a.message]) for a in own) for own in starts),
    )
    roles = [Role(f"role{p}", STAGES[p], own) for p, own in enumerate(starts)]
    names = [{f"role{a}", f"role{b}"} for a, b in ends]
    if finishes(roles, lambda action: names[action.message], random.Random(0)):
        execute(steps, lambda role, action: FREE)
    else:
        with pytest.raises(InternalError, match="wait for each other"):
            execute(steps, lambda role, action: FREE)


MESH = Mesh("gpus", (("pp", 4),), 0)
STAGES = [Submesh(MESH, (("pp", p),)) for p in range(4)]


def test_tiles_one_after_another_against_their_windows() -> None:
    """A tile needs the next one of the layer before; the text says which, and that no order is needed."""
    models = Path(__file__).parent.parent / "models"
    text = "mesh gpus(dp = 1)\nsplit model by height into t = 3\nassign model to gpus\n"
    text += "order model.fwd[t = 0] -> model.fwd[t = 1]\n"
    with pytest.raises(PlanError) as caught:
        compile_source(Source("plan.ssp", text), graph_of(f"{models / 'spatial.py'}:chain"), {}, None)
    said = render(caught.value.diagnostics[0])
    assert "reads windows: its part 0 waits for t = 0, 1" in said
    assert "leave out line 4\n" in said and "without the `order`" in said
