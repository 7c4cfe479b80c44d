"""Every mutant of a right program is refuted, unless it computes the same.

One of each kind for each plan here; `SSDSL_MUTANTS=2` takes two, as `make test-all` does, `all` takes all of them.
"""

import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from bench.fuzz.trial import SLOW
from ssdsl.compile import compile_evaluation, compile_plan, compile_source
from ssdsl.ir.comm import AllGather, Transfer
from ssdsl.ir.program import Program
from ssdsl.prove.prove import prove
from ssdsl.text.source import Source
from tests.captured import captured, graph_of
from tests.ir.conftest import _program as small_program
from tests.prove.mutations import MUTATIONS, Mutant, mutants
from tests.prove.running import runs_wrong

MODEL = "gpt:tiny,layers=2,hidden=32,seq=16,vocab=64"  # two layers are of one kind; more give the same kinds of mutants

MOST = None if (wanted := os.environ.get("SSDSL_MUTANTS", "1")) == "all" else int(wanted)
OF_FEW_KINDS = None if MOST is None else 6 * MOST  # where only some kinds are tried

HERE = Path(__file__).parent
DROPPING = f"{MODEL},dropout=0.1"
OTHERS = [  # plans of these tests for models of their own
    ("sequence_parallel", DROPPING),
    ("again", DROPPING),
    ("whole_matrices", MODEL),
    ("portions", MODEL),
    ("kept", MODEL),
    ("kept_by_roles", MODEL),
    ("recomputed", DROPPING),
    ("found", f"{HERE / 'models.py'}:found"),
    ("memory", f"{HERE / 'models.py'}:memory"),
    ("noisy", f"{HERE / 'models.py'}:noisy"),
    ("two_prologues", f"{HERE / 'models.py'}:read_twice"),
    ("space", f"{HERE / 'models.py'}:space"),
    ("nested_space", f"{HERE / 'models.py'}:space"),
    ("tiles_of_columns", f"{HERE / 'models.py'}:space"),
    ("slices", f"{HERE.parent / 'models' / 'sequences.py'}:causal"),
    ("context", f"{HERE.parent / 'models' / 'sequences.py'}:groups"),
    ("slices_of_parts", MODEL),
    ("ring", f"{HERE.parent / 'models' / 'sequences.py'}:causal"),
    ("zigzag", f"{HERE.parent / 'models' / 'sequences.py'}:causal"),
    ("travelling", f"{HERE.parent / 'ir' / 'models.py'}:two_routers"),
    ("pixels", f"{HERE.parent / 'models' / 'pixels.py'}:causal"),
    ("told", f"{HERE / 'models.py'}:told"),
    ("borders", f"{HERE.parent / 'ir' / 'models.py'}:borders"),
    ("rolled", f"{HERE.parent / 'ir' / 'models.py'}:rolled"),
    ("routed", f"{HERE / 'models.py'}:routed"),
]

PROGRAMS: tuple[tuple[str, dict[str, int]], ...] = (
    ("megatron", {"D": 2}),
    ("zero", {"Z": 1}),
    ("zero", {"Z": 2}),
    ("zero", {"Z": 3}),
    ("co_shard", {}),
    ("zero_bubble", {}),
    ("sequence_parallel", {}),
    ("tied_stages", {}),
    ("uneven", {}),
    ("interlaced_loss", {}),
    ("unequal_meshes", {}),
    ("unequal_stages", {}),
    ("halves_everywhere", {}),
    ("recomputed", {}),
    ("across", {}),
    ("two_axes", {}),
    ("ulysses", {}),
    ("half_batch", {}),
)
# which have all kinds of mutants that any of these has, with OTHERS[::3]
QUICK = [case for case in PROGRAMS if case[0] in ("megatron", "interlaced_loss", "halves_everywhere")]
QUICK.append(("zero", {"Z": 3}))

SCORED = str(HERE.parent / "models" / "scored.py") + ":net"
DECIDED_BY_TRAINING = (  # some of them are harmless, and training shows which
    *("wait_forgotten_until_later", "posts_exchanged", "overwritten", "pieces_exchanged"),
    "completion_in_another_order",
)
NEVER_RUN_BY_AN_EVALUATION = ("completion_at_another_time",)  # it completes no gradient, at any time


@cache
def evaluation(plan: str, model: str, outputs: tuple[str, ...]) -> Program:
    """The program that evaluates under a plan of the examples."""
    loaded, graph = captured(model)
    path = HERE.parent.parent / "examples" / f"{plan}.ssp"
    return compile_evaluation(compile_plan(path, graph, {}), loaded, outputs).program


HARMLESS_IF_IT_RUNS = {
    **dict.fromkeys(
        ("wait_forgotten_until_later", "posts_exchanged"),
        "an order that no data needs: no number changes, and nobody waits in a circle",
    ),
    "reduced_within_a_wrong_task": "the task in front adds to all of its weights, and is the last to do so",
    "overwritten": "a step that makes a new tensor, of one that nobody else needs",
    "steps_in_another_order": "gathers of digits of different dimensions lead to the same tensor",
    **dict.fromkeys(
        ("pieces_exchanged", "completion_in_another_order"),
        "another device sends the same tensor; sums of a whole and of its shards are the same",
    ),
}


def is_harmless(mutant: Mutant, model: str = MODEL) -> str:
    """Why a mutant computes what the program computes, decided by running where no rule knows; empty if it does not."""
    if mutant.kind == "action_dropped" and " Free(" in mutant.where:
        return "a value is kept longer: only memory"
    reason = HARMLESS_IF_IT_RUNS.get(mutant.kind, "")
    return "" if reason and runs_wrong(mutant.program, captured(model)[0]) else reason


@pytest.mark.parametrize(
    ("plan", "params"),
    [pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow) for case in PROGRAMS],
    ids=str,
)
def test_wrong_programs_are_refuted(compiled: Callable[..., Program], plan: str, params: dict[str, int]) -> None:
    program = compiled(plan, MODEL, **params)
    assert prove(program).failures == ()
    accepted = [m for m in mutants(program, most=MOST) if not prove(m.program).failures]
    assert [str(m) for m in accepted if not is_harmless(m)] == []


@pytest.mark.thinned(9)
@pytest.mark.parametrize(("plan", "model"), OTHERS, ids=lambda given: Path(given).name)
def test_wrong_programs_of_other_models_are_refuted(compiled: Callable[..., Program], plan: str, model: str) -> None:
    program = compiled(plan, model)
    assert prove(program).failures == ()
    accepted = [m for m in mutants(program, most=1) if not prove(m.program).failures]
    assert [str(m) for m in accepted if not is_harmless(m, model)] == []


def test_wrong_regions_of_several_axes_are_refuted(compiled: Callable[..., Program]) -> None:
    program = compiled("nested_space", f"{HERE / 'models.py'}:space")
    assert prove(program).failures == ()
    found = [*mutants(program, ("axes_of_regions", "regions_of_a_step", "window_of_another_part"), most=8)]
    assert len(found) == 3 * 8
    assert [str(m) for m in found if not prove(m.program).failures] == []


def test_wrong_rings_are_refuted(compiled: Callable[..., Program]) -> None:
    program = compiled("rings", MODEL)
    assert prove(program).failures == ()
    found = [*mutants(program, ("kernel_changed",), most=20)]
    assert len({m.where.split(": ")[-1] for m in found}) > 10
    assert [str(m) for m in found if not prove(m.program).failures] == []


@pytest.mark.parametrize(
    "kind", ["first_of_another_index", "reshard_dropped", "carried_operands", "split_dropped", "step_dropped"]
)
def test_wrong_terms_of_a_loss_are_refuted(kind: str) -> None:
    program = small_program("penalty")
    assert prove(program).failures == ()
    found = list(mutants(program, (kind,)))
    assert found
    assert [str(m) for m in found if not prove(m.program).failures] == []


SHARED = """
mesh gpus(node = 2, gpu = 2, d = 2)

split model by batch into node
split model by batch into gpu
{state}
assign model to gpus
"""


SENT = """
mesh one(a = 1)
mesh two(node = 3)
assign model - model["*h.0*"] to two
assign model["*h.0*"] to one
"""
NESTED = (
    "split model.weights by row into gpu\nsplit model.optimizer by row into node, gpu",
    "split model.grads by row into gpu\nsplit model.optimizer by row into node, gpu",
    "split model.weights by row into d\nsplit model.grads by row into gpu, d\n"
    "split model.optimizer by row into node, gpu, d",
)


@pytest.mark.thinned(6)
@pytest.mark.parametrize(
    "state", ["", "split model.optimizer by row into gpu", "split model.weights by row into gpu", *NESTED]
)
def test_wrong_reductions_are_refuted(state: str) -> None:
    """Copies share a reduction (along d) where slow links join nodes, or states are in parts of parts."""
    source = Source("plan.ssp", SHARED.format(state=state))
    program = compile_source(source, graph_of(MODEL), {}, HERE, SLOW).program
    is_shared = any(isinstance(s, AllGather) for flat in program.flats for s in flat.completion.steps)
    assert is_shared is (state not in NESTED)
    assert prove(program).failures == ()
    kinds = tuple(kind for kind in MUTATIONS if kind.startswith(("completion", "flat", "param_partial", "reduction")))
    accepted = [m for m in mutants(program, kinds, most=OF_FEW_KINDS) if not prove(m.program).failures]
    assert [str(m) for m in accepted if not is_harmless(m)] == []


def test_wrong_broadcasts_are_refuted() -> None:
    """A broadcast has the receivers of one box of one sender: the proof compares it with what each of them needs."""
    program = compile_source(Source("plan.ssp", SENT), graph_of(MODEL), {}, HERE, SLOW).program
    moves = [m for message in program.messages if isinstance(message, Transfer) for m in (message.forward,)]
    assert any(m.broadcast for m in moves) and prove(program).failures == ()
    kinds = ("piece_dropped", "piece_doubled", "pieces_exchanged", "box_shifted", "aligned_changed")
    accepted = [m for m in mutants(program, kinds, most=OF_FEW_KINDS) if not prove(m.program).failures]
    assert [str(m) for m in accepted if not is_harmless(m)] == []


def test_an_update_is_behind_all_tasks_where_nothing_is_trained() -> None:
    program = small_program("late_loss")  # whose last devices have no weights
    found = list(mutants(program, ("updated_too_early",)))
    assert {role.name for role in program.roles} == {mutant.where.split()[0] for mutant in found}
    assert [str(m) for m in found if not prove(m.program).failures] == []


@pytest.mark.thinned(9)
@pytest.mark.parametrize(
    ("plan", "model", "outputs"),
    [
        ("megatron", DROPPING, ("logits",)),
        ("zero", DROPPING, ("logits",)),
        ("data_parallel", SCORED, ("logits", "total")),
    ],
    ids=lambda given: Path(given).name if isinstance(given, str) else "",
)
def test_wrong_evaluations_are_refuted(plan: str, model: str, outputs: tuple[str, ...]) -> None:
    program = evaluation(plan, model, outputs)
    assert prove(program).failures == ()
    kinds = tuple(kind for kind in MUTATIONS if kind not in DECIDED_BY_TRAINING + NEVER_RUN_BY_AN_EVALUATION)
    accepted = [m for m in mutants(program, kinds, most=MOST) if not prove(m.program).failures]
    assert [str(m) for m in accepted if not is_harmless(m)] == []


def test_every_kind_has_mutants(compiled: Callable[..., Program]) -> None:
    """No generator is idle on all programs."""

    def programs() -> Iterator[Program]:
        """Those first that are broken above, unless slow tests are run."""
        yield from (compiled(plan, MODEL, **params) for plan, params in QUICK)
        yield from (compiled(plan, model) for plan, model in OTHERS[::3])
        yield from map(small_program, ("statistics", "penalty", "late_loss"))
        yield evaluation("data_parallel", SCORED, ("logits", "total"))
        yield from (compiled(plan, model) for plan, model in OTHERS)
        yield from (compiled(plan, MODEL, **params) for plan, params in PROGRAMS)

    idle = set(MUTATIONS)
    for program in programs():
        idle -= {kind for kind in idle if next(iter(MUTATIONS[kind](program)), None) is not None}
        if not idle:
            break
    assert idle == set()
