"""What plans of transformers mean: which gradients are summed, which are not, what stops."""

import pytest

from ssdsl.model.captured import ModelRequest, captured
from ssdsl.model.graph import Graph
from ssdsl.tp_plans.entries import PlanKind, model_plans
from ssdsl.tp_plans.gradients import Meaning, Sum, meaning
from ssdsl.tp_plans.matching import wildcard

SIZES = "hidden_size=32,intermediate_size=64,num_attention_heads=4,num_key_value_heads=2,vocab_size=96,batch=4,seq=8"
QWEN = f"hf:qwen3,num_hidden_layers=2,head_dim=8,{SIZES}"
MOE = f"hf:qwen3_moe,num_hidden_layers=2,num_experts=4,num_experts_per_tok=2,moe_intermediate_size=32,{SIZES}"
MLA = (
    "hf:glm4_moe_lite,num_hidden_layers=1,hidden_size=32,intermediate_size=64,num_attention_heads=4,"
    "num_key_value_heads=4,vocab_size=96,q_lora_rank=16,kv_lora_rank=16,qk_nope_head_dim=8,qk_rope_head_dim=4,"
    "v_head_dim=8,n_routed_experts=4,num_experts_per_tok=2,moe_intermediate_size=32,batch=4,seq=8"
)
LAYERS = "model.layers.*"


def read(model: str) -> tuple[Graph, dict[str, str]]:
    found = captured(ModelRequest(model))
    return found.graph, dict(model_plans(found.model.module).merged[PlanKind.TENSOR])


def wrong(found: Meaning) -> dict[str, Sum]:
    return {wildcard(name): by for name, by in found.sums.items() if by is not Sum.RIGHT}


@pytest.mark.parametrize("model", [QWEN, MOE, MLA], ids=["qwen3", "qwen3_moe", "glm4_moe_lite"])
def test_plans_that_are_right(model: str) -> None:
    found = meaning(*read(model))
    assert found.is_right and not found.forward and not found.backward


def test_a_gradient_that_nothing_sums_is_missing() -> None:
    graph, plan = read(QWEN)
    del plan[f"{LAYERS}.self_attn.q_norm"]
    assert wrong(meaning(graph, plan)) == {f"{LAYERS}.self_attn.q_norm.weight": Sum.MISSING}


def test_a_whole_gradient_that_is_summed_is_too_many() -> None:
    graph, plan = read(QWEN)
    plan[f"{LAYERS}.input_layernorm"] = "replicated_with_grad_allreduce"
    assert wrong(meaning(graph, plan)) == {f"{LAYERS}.input_layernorm.weight": Sum.MANY}


def test_a_gradient_of_which_a_part_is_summed_reaches_all_in_front() -> None:
    graph, plan = read(MLA)
    plan[f"{LAYERS}.self_attn.kv_a_proj_with_mqa"] = "replicate"  # the part with positions goes to the heads directly
    found = meaning(graph, plan)
    names = wrong(found)
    assert names[f"{LAYERS}.self_attn.kv_a_proj_with_mqa.weight"] is Sum.IN_PART
    assert names["model.embed_tokens.weight"] is Sum.FOLLOWS or names["model.embed_tokens.weight"] is Sum.IN_PART
    assert f"{LAYERS}.self_attn.kv_b_proj.weight" not in names and found.backward


def test_a_router_whose_rows_go_to_cut_experts_needs_the_sum() -> None:
    graph, plan = read(MOE)
    del plan[f"{LAYERS}.mlp.experts"]
    found = meaning(graph, plan)
    assert any("no one has summed" in m.what or "addends" in m.what for m in found.forward)


@pytest.mark.parametrize(
    ("name", "style", "what"),
    [
        (f"{LAYERS}.mlp.down_proj", "rowwise_split_input", "for whole; it is cut"),
        (f"{LAYERS}.mlp.gate_proj", "colwise_gather_output", "all of"),
        (f"{LAYERS}.self_attn.o_proj", "colwise", "for whole; it is cut"),
        ("lm_head", "colwise", "`vocab`"),
    ],
)
def test_what_stops_or_is_wrong_in_the_forward_is_said(name: str, style: str, what: str) -> None:
    graph, plan = read(QWEN)
    plan[name] = style
    found = meaning(graph, plan)
    assert found.forward and what in " ".join(m.what for m in found.forward) and not found.is_right


def test_parts_that_are_gathered_need_be_no_parts_of_a_dimension() -> None:
    graph, plan = read(f"hf:phi3,num_hidden_layers=1,pad_token_id=0,{SIZES}")
    fused = f"{LAYERS}.self_attn.qkv_proj"
    assert plan[fused] == "colwise_gather_output" and meaning(graph, plan).is_right
    assert meaning(graph, plan | {fused: "colwise"}).forward
