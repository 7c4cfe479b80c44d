"""Ranks that do nothing until what they start has arrived do not wait for each other for ever: a GPU may do so."""

from pathlib import Path

import pytest

from bench.fuzz.trial import SLOW
from ssdsl.compile import compile_plan, compile_source
from ssdsl.ir.program import End, Role, Start
from ssdsl.lang.shipped import plan_path
from ssdsl.model.load.model import Model
from ssdsl.prove.failures import Rule
from ssdsl.prove.prove import prove
from ssdsl.record import replace
from ssdsl.run.in_process import run_in_process as ranks
from ssdsl.run.in_process.mailbox import RankGroup, Threaded
from ssdsl.runtime.options import Training
from ssdsl.runtime.ranks.transport import Ends, StartedExchange
from ssdsl.text.source import Source
from ssdsl.workspace import Compiled
from tests.captured import captured

GPT = "gpt:tiny,hidden=32,seq=16,vocab=64"
PLANS: list[tuple[str, str, dict[str, int]]] = [
    ("pipeline", GPT, {}),
    ("megatron", GPT, {"D": 2}),
    ("interleaved", GPT, {}),
    ("v_shaped", GPT, {"H": 1}),
    ("zero_bubble", GPT, {}),
    ("terapipe", GPT, {}),
    ("context_parallel", GPT, {}),
    ("zero", GPT, {"Z": 3}),
    ("experts", "moe_gpt:tiny", {}),
    ("alphafold2_3f1b", "alphafold2:tiny", {}),
    ("mbart_interlaced", "mbart:tiny", {}),
    ("cross_mesh_gpt", GPT, {}),
    ("alpa_gpt", GPT, {"M": 2}),
    ("cross_mesh_u_transformer", "u_transformer:tiny", {"D": 2, "M": 2}),
]


# With slow links each device sends a share of its copy, to one that sends it another.
ROUND = """
mesh gpus(node = 2, tp = 2)
assign model["*h.0*"] to gpus[node = 0]
assign model - model["*h.0*"] to gpus
"""


class OneByOne(Threaded):
    """Sends, and then receives, each message by itself."""

    def start_exchange(self, into: Ends, parts: Ends, group: RankGroup, tag: int = 0) -> StartedExchange:
        leaving = [super(OneByOne, self).start_exchange((), [end], group, tag).leaving[0] for end in parts]
        return StartedExchange([super(OneByOne, self).start_exchange([end], (), group, tag) for end in into], leaving)


def train(found: Compiled, model: Model) -> None:
    """Two steps."""
    ranks.run_in_process(ranks.program_of(found.program, model), Training(2))


@pytest.mark.thinned(11)
@pytest.mark.parametrize(("plan", "spec", "params"), PLANS, ids=[p for p, *_ in PLANS])
def test_all_ranks_go_on(plan: str, spec: str, params: dict[str, int]) -> None:
    model, graph = captured(spec)
    train(compile_plan(plan_path(plan), graph, params), model)


def early(role: Role) -> Role:
    """The role with its receives in front of everything."""
    receives = [a for a in role.actions if isinstance(a, Start) and a.end is End.RECEIVE]
    return replace(role, actions=(*receives, *(a for a in role.actions if a not in receives)))


def test_receives_in_front_of_what_they_need_are_found_by_the_proof_and_by_threads() -> None:
    model, graph = captured(GPT)
    found = compile_plan(plan_path("pipeline"), graph, {})
    program = replace(found.program, roles=tuple(map(early, found.program.roles)))
    assert {failure.rule for failure in prove(program).failures} == {Rule.DEADLOCK.value}
    with pytest.raises(ranks.RanksFailed, match="rank 1 to send"):
        ranks.run_in_process(ranks.program_of(program, model), Training(2))


def test_what_two_ranks_send_each_other_starts_together(monkeypatch: pytest.MonkeyPatch) -> None:
    model, graph = captured(GPT)
    found = compile_source(Source("round.ssp", ROUND), graph, {}, Path(), SLOW)
    train(found, model)
    monkeypatch.setattr(ranks, "Threaded", OneByOne)
    with pytest.raises(ranks.RanksFailed, match=r"to (receive|send)"):
        train(found, model)
