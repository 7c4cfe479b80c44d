"""Communication per step, counted at run time by each rank, is what the textbooks say: no call more, no byte more.

Bytes are those of the whole tensor: what an all_reduce sums, an all_gather returns, a reduce_scatter is given.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from ssdsl.model.zoo import PARAMETERS, ZOO
from ssdsl.run.in_process.run_in_process import program_of, run_in_process
from tests.verify.conftest import TRAINING

SIZE = ZOO["gpt"].sizes["tiny"]
GPT = SimpleNamespace(**SIZE.numbers)
LAYERS = GPT.layers
TOKENS = GPT.batch * GPT.seq
FLOAT, INT = 4, 8
STATE = TOKENS * GPT.hidden * FLOAT  # the residual stream: batch x seq x hidden
WEIGHTS = PARAMETERS["gpt:tiny"] * FLOAT
TABLE = GPT.vocab * GPT.hidden * FLOAT  # the embedding of tokens, tied to the head
POSITIONS = GPT.seq * GPT.hidden * FLOAT
NORMS = (2 * LAYERS + 1) * 2 * GPT.hidden * FLOAT
UNITS = LAYERS + 3  # what ZeRO-3 gathers at once: a layer, the two embeddings, the last norm
VALID = INT  # one number: how many labels are not ignored, where the batch or the sequence is split
M = 4
BUCKETS = 4  # of gradients


@dataclass(frozen=True)
class Row:
    """So many calls of a collective that take so many bytes together."""

    kind: str
    calls: int
    size_bytes: int
    why: str


ENTROPY = (
    Row("all_reduce", 1, TOKENS * FLOAT, "cross entropy: the highest logit of every token"),
    Row("all_reduce", 1, 2 * TOKENS * FLOAT, "cross entropy: the sum of exponentials and the label's logit"),
)
COUNT = Row("all_reduce", 1, VALID, "the number of valid labels")

LEDGER: dict[str, tuple[Row, ...]] = {
    "data_parallel": (
        Row("all_reduce", BUCKETS, WEIGHTS, "gradients"),
        COUNT,
    ),
    "tensor_parallel": (
        Row("all_reduce", 4 * LAYERS, 4 * LAYERS * STATE, "attention and ffn of each layer, forward and backward"),
        Row("all_reduce", 1, STATE, "embedding, forward"),
        Row("all_reduce", 1, STATE, "head, backward"),
        *ENTROPY,
    ),
    "sequence_parallel": (
        Row("all_gather", 4 * LAYERS, 4 * LAYERS * STATE, "before attention and ffn, and behind them in backward"),
        Row("all_gather", 2 * LAYERS + 1, (2 * LAYERS + 1) * STATE, "before attention, ffn and head, again"),
        Row("reduce_scatter", 4 * LAYERS, 4 * LAYERS * STATE, "behind attention and ffn, and before them in backward"),
        Row("reduce_scatter", 1, STATE, "embedding, forward"),
        Row("all_gather", 1, STATE, "embedding, backward"),
        Row("all_gather", 1, STATE, "head, forward"),
        Row("reduce_scatter", 1, STATE, "head, backward"),
        *ENTROPY,
        Row("all_gather", 1, TOKENS * INT, "labels, shifted in parts of the sequence"),
        COUNT,
        Row("all_reduce", 1, NORMS + POSITIONS, "gradients of what every device has: norms and positions"),
    ),
    "zero Z=1": (
        Row("reduce_scatter", BUCKETS, WEIGHTS, "gradients"),
        Row("all_gather", BUCKETS, WEIGHTS, "weights after the step"),
        COUNT,
    ),
    "zero Z=2": (
        Row("reduce_scatter", BUCKETS, WEIGHTS, "gradients"),
        Row("all_gather", BUCKETS, WEIGHTS, "weights after the step"),
        COUNT,
    ),
    "zero Z=3": (
        Row("all_gather", UNITS, WEIGHTS, "weights, forward"),
        Row("all_gather", UNITS - 1, WEIGHTS - POSITIONS, "weights, backward; looking up positions needs none"),
        Row("reduce_scatter", UNITS, WEIGHTS, "gradients"),
        COUNT,
    ),
    "pipeline rank 0": (
        Row("send", M, STATE, "to the second stage, forward"),
        Row("all_reduce", 1, TABLE, "gradient of the embedding, tied to the head"),
    ),
    "pipeline rank 1": (
        Row("send", M, STATE, "to the first stage, backward"),
        Row("all_reduce", 1, TABLE, "gradient of the embedding, tied to the head"),
    ),
    "swapped rank 0": (
        Row("send", M, STATE, "from the last stage to the one before, backward"),
        Row("all_reduce", 1, TABLE, "gradient of the embedding, tied to the head"),
    ),
    "swapped rank 1": (Row("send", 2 * M, 2 * STATE, "to both neighbours; no embedding here"),),
    "swapped rank 2": (
        Row("send", M, STATE, "from the first stage to the next, forward"),
        Row("all_reduce", 1, TABLE, "gradient of the embedding, tied to the head"),
    ),
}


PLANS = dict.fromkeys(name.partition(" rank ")[0] for name in LEDGER)


@pytest.mark.parametrize("plan", PLANS)
def test_ledger(program: Callable[..., Any], plan: str) -> None:
    made = made_of(program, plan)
    finished = run_in_process(program_of(made.compiled.program, made.model), TRAINING)
    for rank, counts in finished.counts.items():
        counted = {kind: (n["calls"] / TRAINING.steps, n["bytes"] / TRAINING.steps) for kind, n in counts.items()}
        assert counted == added(LEDGER.get(f"{plan} rank {rank}") or LEDGER[plan])


@pytest.mark.thinned(21)
@pytest.mark.parametrize("plan", PLANS)
def test_ledger_of_processes(program: Callable[..., Any], plan: str) -> None:
    result = made_of(program, plan).train()
    for rank in result.ranks:
        counted = {kind: (t.calls / result.steps, t.bytes / result.steps) for kind, t in rank.comm.items()}
        assert counted == added(LEDGER.get(f"{plan} rank {rank.rank}") or LEDGER[plan])


def made_of(program: Callable[..., Any], plan: str) -> Any:
    name, _, setting = plan.partition(" ")
    param, _, value = setting.partition("=")
    return program(name, "gpt:tiny", **({param: int(value)} if param else {}))


def added(rows: tuple[Row, ...]) -> dict[str, tuple[int, int]]:
    """Calls and bytes of each kind."""
    total: dict[str, tuple[int, int]] = {}
    for row in rows:
        calls, size_bytes = total.get(row.kind, (0, 0))
        total[row.kind] = calls + row.calls, size_bytes + row.size_bytes
    return total
