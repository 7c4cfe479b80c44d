"""Under NCCL's rules no plan's ranks wait for each other for ever."""

import pytest

from ssdsl.compile import compile_plan
from ssdsl.lang.shipped import plan_path
from ssdsl.run.in_process import run_in_process as ranks
from ssdsl.run.launch import Training
from ssdsl.runtime.layout.transfers import Mover
from tests.captured import captured
from tests.run.in_process.nccl import Nccl, Queues

GPT = "gpt:tiny"
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


def train(plan: str, model: str, params: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> Queues:
    queues = Queues()
    monkeypatch.setattr(ranks, "Threaded", lambda rank, exchange: Nccl(rank, exchange, queues))
    found, graph = captured(model)
    ranks.run_in_process(ranks.program_of(compile_plan(plan_path(plan), graph, params).program, found), Training(2))
    return queues


@pytest.mark.thinned(4)
@pytest.mark.parametrize(("plan", "model", "params"), PLANS, ids=[p for p, *_ in PLANS])
def test_all_ranks_go_on(plan: str, model: str, params: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    assert not any(train(plan, model, params, monkeypatch).calls.values())


def test_ranks_that_do_not_connect_first_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Mover, "connect", lambda self, messages: None)
    with pytest.raises(ranks.RanksFailed, match="to connect"):
        train("pipeline", GPT, {}, monkeypatch)
