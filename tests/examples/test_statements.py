"""Every statement of every shipped plan says something: changed, it gives another program, or is refused.

What changes nothing must agree with what holds anyway. That is: the statement stands in a branch that is not taken; or
`where possible` finds nothing new, before and after; or the plan says the same of the state of the same weights, as
what is in parts has what follows from it in the same parts. All else gets a warning that points at it.
"""

from collections.abc import Mapping
from pathlib import Path

import pytest

from ssdsl.compile import make_plan
from ssdsl.ir.text.program import program_text
from ssdsl.lang.assets import assets_folder
from ssdsl.lang.shipped import plan_path
from ssdsl.lower.lower import lower
from ssdsl.lower.unread import unread
from ssdsl.plan.plan import Plan, State
from ssdsl.text.diagnostic import Diagnostic, PlanError
from ssdsl.text.source import Source
from tests.captured import graph_of
from tests.examples.changed import NOTHING, Changed, changed_plans

GPT, GPT4, SWIN = "gpt:tiny,layers=2", "gpt:tiny", "swin:small,depths=2-2-1-1,batch=8"
ALPHAFOLD, MBART, T5 = "alphafold2:tiny,batch=4", "mbart:tiny", "t5:tiny"
RUNS: list[tuple[str, str, dict[str, int]]] = [  # every axis and every index has several parts
    ("co_shard", GPT, {}),
    ("context_parallel", GPT, {"U": 2}),
    ("data_parallel", GPT, {}),
    ("experts", "moe_gpt:tiny", {"T": 2, "D": 2}),
    ("half_batch", GPT, {}),
    ("breadth_first", GPT, {}),
    ("interleaved", GPT4, {}),
    ("megatron", GPT, {"D": 2, "M": 2}),
    ("pipeline", GPT, {}),
    ("sequence_parallel", GPT, {}),
    ("sketch", "mixtral:tiny", {"S": 2, "E": 2, "T": 2, "M": 2}),
    ("spatial", "unet3d:tiny", {"W": 2}),
    ("splitbrain", "vgg:tiny", {}),
    ("tensor_parallel", GPT, {}),
    ("terapipe", GPT, {}),
    ("tiles", "resnet:tiny", {"T": 2, "again": 1}),
    ("v_shaped", GPT4, {}),
    ("zero", GPT, {"M": 2}),
    ("zero_bubble", GPT, {}),
    ("gpt_co_shard", GPT, {"D": 2, "T": 2, "M": 2}),
    ("gpt_megatron", GPT, {"D": 2, "M": 2, "P": 1}),
    ("gpt_zero3", GPT, {"D": 2, "M": 2}),
]
MORE: list[tuple[str, str, dict[str, int]]] = [
    ("alpa_gpt", GPT4, {"D": 8, "T": 2, "M": 2}),
    ("alpa_moe", "moe_gpt:tiny", {"D": 2, "S": 2, "M": 2}),
    ("alphafold2_3f1b", ALPHAFOLD, {"D": 2, "A": 2, "M": 2}),
    ("alphafold2_dap", ALPHAFOLD, {"D": 2, "M": 2}),
    ("alphafold2_in_turn", ALPHAFOLD, {"D": 2, "A": 2, "M": 2}),
    ("alphafold2_zero2", ALPHAFOLD, {"M": 2}),
    ("alpa_wide_resnet", "wide_resnet:tiny,statistics=4", {"W": 2}),
    ("any_megatron", GPT, {"D": 2, "M": 2}),
    ("any_zero3", GPT, {"M": 2}),
    ("argus_codebook", "argus:tiny", {"D": 2, "M": 2}),
    ("argus_pipeline", "argus:tiny-prior", {"D": 2, "M": 2}),
    ("cephalo", GPT, {}),
    ("cross_mesh_gpt", GPT, {"D": 2}),
    ("cross_mesh_u_transformer", "u_transformer:tiny", {"D": 2, "M": 2}),
    ("ga_planes_points", "ga_planes:tiny", {"M": 2}),
    ("ga_planes_volume", "ga_planes:tiny", {"D": 2, "M": 2}),
    ("galvatron_bert", "bert:tiny,layers=4,batch=16", {"M": 2, "R": 1}),
    ("mbart_interlaced", MBART, {"D": 2, "S": 2, "T": 2, "M": 2, "R": 1}),
    ("mbart_megatron", MBART, {"D": 2, "T": 2, "M": 2, "R": 1}),
    ("mbart_zero3", MBART, {"M": 2, "R": 1}),
    ("rannc_resnet", "resnet:tiny,statistics=8", {"W": 2}),
    ("fpdt", GPT, {}),
    ("fusionllm", "gpt:tiny", {"percent": 10}),
    ("sketch_embeddings", T5, {"D": 2, "P": 2, "E": 2, "T": 2, "M": 2, "R": 1}),
    ("sketch_large_images", SWIN, {"D": 2, "S": 2, "T": 2, "M": 2, "A": 2, "Z": 1}),
    ("sketch_long_sequences", GPT, {"D": 2, "S": 2, "T": 2, "M": 2, "C": 2}),
    ("sketch_passes", ALPHAFOLD, {"D": 2, "S": 2, "A": 2, "M": 2, "Z": 1}),
    ("sketch_stages", GPT, {"D": 8, "T": 2, "M": 2}),
    ("t5_interlaced", T5, {"D": 2, "S": 2, "T": 2, "M": 2, "R": 1}),
    ("t5_megatron", T5, {"D": 2, "T": 2, "M": 2, "R": 1}),
    ("t5_zero3", T5, {"M": 2, "R": 1}),
    ("spatial_cosmoflow", "cosmoflow:tiny", {"B": 2, "H": 2, "W": 2}),
    ("swin_co_shard", SWIN, {"D": 2, "M": 2, "R": 1}),
    ("swin_megatron", SWIN, {"D": 2, "M": 2}),
    ("swin_spmd", SWIN, {"M": 2}),
    ("swin_zero3", SWIN, {"D": 2, "M": 2}),
    ("zero_infinity", GPT, {}),
]


class Refused(Exception):
    """A changed plan that is none."""


def compiled(
    source: Source, spec: str, folder: Path, settings: Mapping[str, int]
) -> tuple[Plan, str, tuple[Diagnostic, ...]]:
    """A plan, its program as text, and what is warned of; nothing is proved."""
    try:
        plan, warnings = make_plan(source, graph_of(spec), settings, folder)
        program = lower(plan)
    except PlanError as error:
        raise Refused from error
    return plan, program_text(program), (*warnings, *unread(plan, program, source))


def every_run() -> list[object]:
    quick = [pytest.param(*run, id=run[0]) for run in RUNS]
    return [*quick, *(pytest.param(*run, id=run[0], marks=pytest.mark.slow) for run in MORE)]


@pytest.mark.thinned(9)
@pytest.mark.parametrize(("name", "spec", "settings"), every_run())
def test_each_statement_says_something(name: str, spec: str, settings: dict[str, int]) -> None:
    path = plan_path(name)
    source = Source(path.name, path.read_text("utf-8"))
    plan, text, warned = compiled(source, spec, path.parent, settings)
    assert not [d for d in warned if d.code not in ("E0380", "E0381")]  # operators without a place, or left whole
    changes, silent = [*changed_plans(source)], []
    for changed in changes:
        try:
            other, its_text, its_warnings = compiled(Source(path.name, changed.text), spec, path.parent, settings)
        except Refused:
            continue
        if its_text != text or any(changed.has(d.span) for d in its_warnings) or _agrees(changed, plan, other):
            continue
        if _is_carried_out(changed, source, spec, path.parent, settings):
            silent.append(changed.what)
    assert not silent
    assert len(changes) > 3


def test_every_plan_is_there() -> None:
    files = [*assets_folder("examples").glob("*.ssp"), *assets_folder("examples").joinpath("papers").glob("*.ssp")]
    assert {path.stem for path in files} == {name for name, _, _ in (*RUNS, *MORE)}


# -- what agrees with what holds ---------------------------------------------------------------------------------------


def _agrees(changed: Changed, plan: Plan, other: Plan) -> bool:
    """Whether the statement, as it was and as it is now, is `where possible` and adds no index; or says what holds of
    state anyway."""
    if "where possible" in changed.old:
        mine = (i.span for record in plan.operators.values() for i in record.indices)
        its = (i.span for record in other.operators.values() for i in record.indices)
        return not any(map(changed.had, mine)) and not any(map(changed.has, its))
    return " by row " in changed.old and _state(plan) == _state(other)


def _state(plan: Plan) -> set[tuple[State, str, frozenset[str]]]:
    """Over which axes which state of which weight is cut, with what follows from it."""
    states = [*State]
    return {
        (state, weight, frozenset(shard.axes))
        for shard in plan.state.shards
        for state in states[states.index(shard.state) :]
        for weight in shard.weights
    }


def _is_carried_out(changed: Changed, source: Source, spec: str, folder: Path, settings: Mapping[str, int]) -> bool:
    """Whether a statement is reached: a false `require` in its place is refused."""
    start, end = changed.span.start, changed.span.end
    text = source.text[:start] + NOTHING.replace("true", "false") + source.text[end:]
    try:
        make_plan(Source(source.name, text), graph_of(spec), settings, folder)
    except PlanError:
        return True
    return False
