"""Models split along their sequence: context parallel, and slices in time that keep the keys of those before them."""

import pytest

from bench.fuzz.trial import Outcome, try_plan
from ssdsl.compile import compile_source
from ssdsl.ir.comm import Exchange
from ssdsl.ir.function import Conversion
from ssdsl.ir.program import Compute, Program
from ssdsl.plan.plan import Phase
from ssdsl.run.in_process.run_in_process import program_of, run_in_process
from ssdsl.runtime.options import Training
from ssdsl.text.source import Source
from tests.simulate.steps import step, traffic
from tests.verify.conftest import ROOT, captured

TRAINING = Training(2, optimizer="sgd", lr=0.1)
FLOAT = 4
CONTEXT = """
mesh gpus(cp = 3)
split model by seq into cp = [5, 4, 4]
assign model to gpus
"""
CONTEXT_AND_HEADS = """
mesh gpus(cp = 2, tp = 2)
split model by seq into cp
split model by heads into tp where possible
assign model to gpus
"""
RING = CONTEXT.replace("assign", "split model by seq.keys into cp = [5, 4, 4]\nassign")
KEYS = RING.replace("split model by seq into cp = [5, 4, 4]\n", "")
RING_AND_HEADS = CONTEXT_AND_HEADS.replace("assign", "split model by seq.keys into cp\nassign")
CHUNKS = "= [3, 2, 2, 2, 2, 2] parts [[0, 5], [1, 4], [3, 2]]"  # a chunk from either end
ZIGZAG, RING_OF_ZIGZAG, KEYS_OF_ZIGZAG = (text.replace("= [5, 4, 4]", CHUNKS) for text in (CONTEXT, RING, KEYS))
RING_THE_OTHER_WAY_ROUND = """
mesh gpus(cp = 2)
split model by seq.keys into cp
split model by seq into cp
assign model to gpus
"""
KEYS_BEHIND_TIME = """
mesh gpus(cp = 2)
split model by seq.keys into n = 2, cp = [10, 22]
assign model to gpus
"""
SLICES = """
mesh gpus(dp = 1)
split model by batch into m = 2
split model by seq into t = [6, 4, 3]
assign model to gpus
recompute model["blocks.*"]
"""
HALVES = """
mesh gpus(pp = 2)
split model by seq into t = 4
let stage = balance(model, 2)
assign stage[s] to gpus[pp = s] for s in 0..2
order by clock for s in 0..2, t in 0..4:
    stage[s].fwd[t = t] at 3 * t
    stage[s].dgrad[t = t] at 3 * (7 - t - s) + 1
    stage[s].wgrad[t = t] at 3 * (7 - t - s) + 2
"""
RECOMPUTED_HALVES = HALVES.replace("order by", 'recompute model["h.*"]\norder by')
JOINED_ELSEWHERE = """
mesh gpus(dp = 1)
split (model - model["blocks.0"]) by seq into t = [5, 4, 4] parts [[1], [2], [0]]
assign model to gpus
"""
SENT_ELSEWHERE = """
mesh one(dp = 1)
mesh two(cp = 2)
let stage = balance(model, 2)
split model by seq into cp = [6, 7] parts [[1], [0]]
assign stage[0] to one
assign stage[1] to two
"""
NESTED = """
mesh gpus(x = 2)
split model by seq into {}
assign model to gpus
"""
NESTINGS = (
    "x, t = 2",
    "t = 2, x",
    "x, t = 2, u = 2",
    "c = 4, n = 2",  # prefixes of the first, of which the second's parts are joined, whichever name comes first
    "n = 4, c = 2",
    "c = 2, n = 2, a = 4",
    "c = 4, n = 2, x",
    "c = 4, x, a = 2",
)
WINDOWS = "flex.py:in_a_window"
TERAPIPE = (ROOT / "examples" / "terapipe.ssp").read_text()
UNEQUAL = TERAPIPE.replace("into t = T", "into t = [40, 24]")
KINDS = ("causal", "masked", "groups", "dropped", "open_", "local", "sections", "around", "biased", "eager")
GPT = "gpt:tiny,layers=2,hidden=32,vocab=64"
ON_FOUR = "mesh gpus(a = 2, b = 2)\nlet attention = model.scaled_dot_product_attention\n"
ON_EIGHT = "mesh gpus(g = 2, r = 2, c = 2)\nlet attention = model.scaled_dot_product_attention\n"
ALL = "assign model to gpus\n"
RING_OF_BOTH = f"{ON_FOUR}split model by seq into a, b\nsplit attention by seq.keys into a, b\n{ALL}"
RING_OF_GATHERED = RING_OF_BOTH.replace("keys into a, b", "keys into b")
KEYS_OF_BOTH = f"{ON_FOUR}split model - attention by seq into a, b\nsplit attention by seq.keys into a, b\n{ALL}"
KEYS_ELSEWHERE = f"""{ON_FOUR}
split model - attention by seq into a, b
split attention by seq into a
split attention by seq.keys into b
{ALL}"""
IN_HALVES = KEYS_ELSEWHERE.replace("seq into a\n", "seq into a parts [[0, 3], [1, 2]]\n")
RINGS_MERGED = f"{ON_FOUR}split model by seq into a\nsplit attention by seq.keys into a, b\n{ALL}"
STARTRAIL = f"""{ON_EIGHT}
split model - attention by seq into g, r, c
split attention by seq into g, r
split attention by seq.keys into r, c
{ALL}"""
WIDTHS = f"""{ON_FOUR}
mesh ring(cp = 4) on gpus
let first = model["h.0"]
split first by seq into cp parts [[0, 7], [1, 6], [2, 5], [3, 4]]
split first.scaled_dot_product_attention by seq.keys into cp parts [[0, 7], [1, 6], [2, 5], [3, 4]]
split model - first by batch into b
split model - first by seq into a
assign first to ring
assign model - first to gpus
"""
SEVERAL_AXES = [  # that cut queries, keys, or both
    (GPT, RING_OF_BOTH),
    (GPT, KEYS_OF_BOTH),
    (GPT, IN_HALVES),
    (GPT, STARTRAIL),
    (GPT, WIDTHS),
    (WINDOWS, STARTRAIL),
    ("sequences.py:causal", RING_OF_BOTH),  # of 13 positions
    ("llama:tiny,layers=1,seq=16", RINGS_MERGED),
    ("bert:tiny,layers=1", RINGS_MERGED),
    ("bert:tiny,layers=1", RING_OF_GATHERED),
]
THIN = CONTEXT.replace("cp = 3", "cp = 4").replace("[5, 4, 4]", "[2, 1, 5, 5]")  # windows reach over two neighbours
CASES = [
    *((f"sequences.py:{kind}", text) for kind in KINDS for text in (CONTEXT, SLICES)),
    *(
        (f"sequences.py:{kind}", text)
        for kind in KINDS
        if kind not in ("dropped", "around", "eager")
        for text in (RING, KEYS)
    ),
    *SEVERAL_AXES,
    *((f"sequences.py:{kind}", RING_OF_BOTH) for kind in ("local", "groups")),
    *((f"sequences.py:{kind}", KEYS_ELSEWHERE) for kind in ("causal", "local")),
    *((f"sequences.py:{kind}", ZIGZAG) for kind in ("causal", "dropped", "local", "around", "eager")),
    *((f"sequences.py:{kind}", THIN) for kind in ("local", "around")),
    *((f"sequences.py:{kind}", text) for kind in ("groups", "biased") for text in (RING_OF_ZIGZAG, KEYS_OF_ZIGZAG)),
    ("sequences.py:causal", HALVES),
    *(("sequences.py:open_", text) for text in (JOINED_ELSEWHERE, SENT_ELSEWHERE)),
    (WINDOWS, CONTEXT_AND_HEADS),
    *((WINDOWS, NESTED.format(parts)) for parts in NESTINGS[:4]),
    (WINDOWS, TERAPIPE),
    (GPT, RING_AND_HEADS),
    (GPT, RING_THE_OTHER_WAY_ROUND),
    (GPT, KEYS_BEHIND_TIME),
    ("llama:tiny", RING_AND_HEADS),
    (GPT, CONTEXT_AND_HEADS),
    *((GPT, NESTED.format(parts)) for parts in NESTINGS),
    (GPT, TERAPIPE),
    (GPT, UNEQUAL),
    (GPT, RECOMPUTED_HALVES),
    ("llama:tiny", CONTEXT_AND_HEADS),
    ("llama:tiny", TERAPIPE),
]


def tried(model: str, text: str) -> Outcome:
    found, graph = captured(model)
    return try_plan(found, graph, text, TRAINING)


@pytest.mark.thinned(31)
@pytest.mark.parametrize(("model", "text"), CASES)
def test_numbers_are_those_of_one_device(model: str, text: str) -> None:
    outcome = tried(model, text)
    assert outcome.kind == "equal", outcome.text


@pytest.mark.parametrize(("model", "text"), [SEVERAL_AXES[k] for k in (0, 3, 4)])
def test_numbers_of_several_axes(model: str, text: str) -> None:
    """Some of these each time."""
    outcome = tried(model, text)
    assert outcome.kind == "equal", outcome.text


def compiled(model: str, text: str) -> Program:
    return compile_source(Source("plan.ssp", text), captured(model)[1], {}, ROOT).program


@pytest.mark.parametrize(("text", "function"), [(RING, "attention_ring"), (KEYS, "attention_keys")])
def test_keys_are_cut(text: str, function: str) -> None:
    ops = [
        i for f in compiled("sequences.py:causal", text).functions for i in f.operators() if "attention" in i.operator
    ]
    assert [op.kernel.function for op in ops] == [function] * 2


@pytest.mark.parametrize("kind", ["causal", "masked", "groups", "dropped", "local"])
def test_attention_is_split_and_slices_flow(kind: str) -> None:
    """Nothing is equal because it stayed whole, or because slices waited for each other."""
    program = compiled(f"sequences.py:{kind}", SLICES)
    (function,) = (f for f in program.functions if f.loss is not None)
    steps = [s for i in function.body() if isinstance(i, Conversion) for s in i.forward if s.in_time]
    assert sum(isinstance(s, Exchange) for s in steps) == 4  # keys and values of two layers
    assert sum(i.producer == function.number for i in function.inputs) == 4
    tasks = [a for a in program.roles[0].actions if isinstance(a, Compute) and a.function == function.number]
    (m, t) = (next(k for k, i in enumerate(function.time) if i.name == name) for name in "mt")
    for phase, order in ((Phase.FORWARD, [0, 1, 2]), (Phase.BACKWARD, [2, 1, 0])):
        assert [a.at[t] for a in tasks if a.phase is phase and a.at[m] == 0] == order


def test_slices_of_slices_read_the_slices_in_front() -> None:
    """The parts of the inner index become one, and of the outer one's only those in front are read."""
    program = compiled(GPT, NESTED.format("c = 4, n = 2"))
    reads = [[*m.merges] for f in program.functions for m in f.inputs if m.merges]
    prefixes = [merges for merges in reads if isinstance(merges[-1], Exchange)]
    assert len(prefixes) == 4  # keys and values of two layers
    for inner, outer in prefixes:
        assert (inner.axes, outer.axes) == (("n",), ("c",))
        assert isinstance(outer, Exchange)
        assert outer.read_by == ((0,), (0, 1), (0, 1, 2), (0, 1, 2, 3))


def test_a_stage_begins_the_next_slice_before_the_next_micro_batch() -> None:
    program = compiled(GPT, TERAPIPE)
    forwards = [
        [a.at for a in role.actions if isinstance(a, Compute) and a.phase is Phase.FORWARD] for role in program.roles
    ]
    assert all(at.index((0, 1)) < at.index((1, 0)) for at in forwards)


def counts(model: str, text: str) -> dict[int, dict[str, int]]:
    """What each rank received in exchanges."""
    finished = run_in_process(program_of(compiled(model, text), captured(model)[0]), TRAINING)
    return {rank: count["exchange"] for rank, count in finished.counts.items()}


def test_the_bytes_of_a_ring() -> None:
    """Keys and values of all others, and again in backward; behind them their gradients, and at last one's own. The
    gradients of the keys from the part before begin here."""
    runs, layers, width = (5, 4, 4), 2, 4 * 32  # batch x hidden
    for rank, count in counts("sequences.py:open_", RING).items():
        others = 13 - runs[rank]
        assert count["bytes"] == TRAINING.steps * layers * 2 * (2 * others + 13 - runs[rank - 1]) * width * FLOAT


@pytest.mark.parametrize(
    ("text", "others", "block"),
    [(RING_OF_BOTH, 3, 16), (RING_OF_GATHERED, 1, 32), (RINGS_MERGED, 1, 16), (STARTRAIL, 1, 16)],
    ids=["of both", "gathered", "merged", "startrail"],
)
def test_the_bytes_of_rings_of_several_axes(text: str, others: int, block: int) -> None:
    """Keys and values of the other devices of a ring, twice, and their gradients; the simulator counts the same."""
    model, graph = captured(GPT)
    found = compile_source(Source("plan.ssp", text), graph, {}, ROOT)
    size = 8 * 32 * FLOAT  # batch x hidden
    expected = 2 * 2 * 3 * others * block * size  # layers; keys and values; forward, backward, gradients
    finished = run_in_process(program_of(found.program, model), TRAINING)
    assert {c["exchange"]["bytes"] for c in finished.counts.values()} == {TRAINING.steps * expected}
    assert traffic(step(found))["exchange"][1] == expected * len(finished.counts)


def test_the_bytes_of_gathered_prefixes() -> None:
    """Of causal attention, the keys and values in front; backward, the gradients of those that come behind."""
    for rank, count in counts("sequences.py:causal", CONTEXT).items():
        front, own, parts_behind = (0, 5, 9)[rank], (5, 4, 4)[rank], 2 - rank
        assert count["bytes"] == TRAINING.steps * 2 * 2 * (front + parts_behind * own) * 4 * 32 * FLOAT


def test_the_bytes_of_windows() -> None:
    """The three keys and values in front that a run's first query sees; backward, the gradients of those that are seen
    from behind."""
    for rank, count in counts("sequences.py:local", CONTEXT).items():
        reached = 3 * ((rank > 0) + (rank < 2))
        assert count["bytes"] == TRAINING.steps * 2 * 2 * reached * 4 * 32 * FLOAT


@pytest.mark.parametrize(
    ("split", "code"),
    [
        ("seq.keys into cp = [30, 34]", "E0205"),  # unlike the queries
        ("seq into t = 2\nsplit model by seq.keys into x", "E0401"),  # slices in time
        ("seq into y\nsplit model by seq.keys into y, x", "E0401"),  # y leaves runs of one position
        ("seq.keys into t = 13", "E0206"),  # of attention that drops
    ],
)
def test_what_keys_cannot_be(split: str, code: str) -> None:
    model = "sequences.py:dropped" if code == "E0206" else GPT
    cut = "split model by seq into cp\n" if code != "E0206" else ""
    text = f"mesh gpus(cp = 2, x = 2, y = 32)\n{cut}split model by {split}\nassign model to gpus\n"
    outcome = tried(model, text)
    assert (outcome.kind, outcome.sign) == ("refused", code), outcome.text
