"""Small configs of any type of transformers: the type's default, with each size that its name tells made small."""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ssdsl.record import Record

Made = TypeVar("Made")

WIDTH, FFN, HEADS, KEYS, HEAD, LAYERS, VOCAB, EXPERTS = 32, 64, 4, 2, 8, 2, 96, 4

# The first row whose pattern is all of a field's name says its size. None leaves the field as it is.
SIZES: tuple[tuple[str, int | None], ...] = (
    (
        r"num_(key_value|kv)_heads|num_kv_heads|kv_heads|.*num_key_value_heads|num_query_groups|num_global_key_value_heads",
        KEYS,
    ),
    (r"(kv|q|o)_lora_rank|.*_lora_rank|.*lora_rank|.*_lora_dim", 16),
    (
        r"qk_nope_head_dim|v_head_dim|head_dim|global_head_dim|.*qk_nope_head_dim|d_kv|attention_head_dim|kv_channels",
        HEAD,
    ),
    (r"qk_rope_head_dim", 4),
    (r"qk_head_dim", 12),
    (r"mamba_n_heads|mamba_num_heads|linear_num_value_heads|linear_num_key_heads", HEADS),
    (r"mamba_d_head|mamba_head_dim|linear_key_head_dim|linear_value_head_dim", 2 * WIDTH // HEADS),
    (r"mamba_d_state|ssm_state_size|state_size|mamba_d_ssm|mamba_n_groups|n_groups", None),
    (r"index_n_heads|index_head_dim|index_topk", None),
    (r".*(num|n)_.*heads?|n_head|num_heads|encoder_attention_heads|decoder_attention_heads|.*attention_heads", HEADS),
    (
        r".*hidden_size_per_layer_input|.*hidden_size|d_model|n_embd|embed_dim|dim|hidden_dim|embedding_size|lm_head_hidden",
        WIDTH,
    ),
    (r".*intermediate_size.*|.*ffn_dim|d_ff|n_inner|ffn_hidden_size|.*ffn_hidden_size|dense_intermediate_size", FFN),
    (
        r"num_hidden_layers|n_layers?|num_layers|encoder_layers|decoder_layers|num_decoder_layers|depth|num_encoder_layers",
        LAYERS,
    ),
    (r"vocab_size.*|.*vocab_size", VOCAB),
    (r"(num_experts|n_routed_experts|num_local_experts|moe_num_experts|num_routed_experts|n_experts)", EXPERTS),
    (r"(num_experts_per_tok|moe_topk|top_k|moe_k|num_selected_experts|num_experts_per_token|moe_top_k)", 2),
    (r"(n_group|topk_group|num_expert_group)", 1),
    (r"max_position_embeddings|n_positions|max_seq_len", 64),
    (r"rotary_dim", 4),
    (r"image_size", 32),
    (r"patch_size", 8),
)


class Way(Record):
    """A way to make a config small: which fields are kept, whether layers are left out, whether there are as many heads
    of keys as of queries, whether the positions get `sections` that the model's code would give a larger head."""

    kept: str = ""
    layers: bool = True
    plain: bool = False
    sections: bool = False


_HEAD_DIMS = r".*head_dim|rope_parameters|sliding_window"
_COUNTS = r"(num_hidden_layers|n_layers?|num_layers|encoder_layers|decoder_layers|depth)"
WAYS = (
    Way(),
    Way(plain=True),
    Way(sections=True),
    Way(kept=_HEAD_DIMS),
    Way(kept=_HEAD_DIMS, plain=True),
    Way(kept=_COUNTS, layers=False),
    Way(kept=f"{_COUNTS}|{_HEAD_DIMS}", layers=False),
    Way(kept=f"{_COUNTS}|{_HEAD_DIMS}", layers=False, plain=True),
)
OTHERS: Mapping[str, Mapping[str, Any]] = {  # fields without a default, or that hang together with others
    "hunyuan_v1_dense": {"head_dim": HEAD},
    "hunyuan_v1_moe": {"head_dim": HEAD, "num_experts": EXPERTS, "moe_topk": 2},
    "ministral": {"head_dim": HEAD},
    "dots1": {"n_routed_experts": EXPERTS, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "nemotron": {"num_key_value_heads": KEYS},
    "nemotron_h": {"n_groups": 2},
    "deepseek_v2": {"num_experts_per_tok": 2, "topk_group": 1, "n_group": 1, "moe_intermediate_size": FFN},
    "hunyuan_vl_text": {"head_dim": HEAD},
    "falcon_h1": {"mamba_d_ssm": 2 * WIDTH, "mamba_n_heads": HEADS, "mamba_d_head": WIDTH // 2, "mamba_n_groups": 2},
}


class Unfit(Exception):
    """No small config of a type can be built; the text is what its constructor says."""


def small(library: Any, kind: str, build: Callable[[Any], Made]) -> tuple[Any, Made]:
    """A small config of a type, and what `build` makes of it: of the ways to make it small the first that works."""
    reason = ""
    for way in WAYS:
        try:
            config = library.CONFIG_MAPPING[kind](
                **{**_fields(library.CONFIG_MAPPING[kind](), way), **OTHERS.get(kind, {})}
            )
            return config, build(config)
        except Exception as error:  # a constructor may raise anything
            lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
            reason = reason or f"{type(error).__name__}: {lines[-1] if lines else ''}"
    raise Unfit(reason)


def _fields(config: Any, way: Way) -> dict[str, Any]:
    """The fields to change, those of configs in it among them."""
    found: dict[str, Any] = {}
    subs = {name: getattr(config, name, None) for name in getattr(config, "sub_configs", {})}
    for name, sub in subs.items():
        if sub is not None:
            found[name] = {**_kind(sub), **_fields(sub, way)}
    layers = getattr(config, "num_hidden_layers", None)
    attributes = getattr(config, "attribute_map", {})
    for name, value in vars(config).items():
        if name in found or name.startswith("_") or name in attributes:
            continue
        small_value = None if re.fullmatch(way.kept, name) else _small(name, value, layers if way.layers else None)
        if small_value is not None:
            found[name] = small_value
    found |= {name: HEADS for name in (*found,) if way.plain and re.fullmatch(SIZES[0][0], name)}
    rope = getattr(config, "rope_parameters", None)
    if way.sections and isinstance(rope, Mapping):
        found["rope_parameters"] = {**rope, "mrope_section": _sections(rope.get("partial_rotary_factor") or 1.0)}
    if "qk_rope_head_dim" in found and "head_dim" in found:  # of multi-head latent attention it is that one
        found["head_dim"] = found["qk_rope_head_dim"]
    return found


def _kind(config: Any) -> dict[str, Any]:
    return {"model_type": config.model_type} if getattr(config, "model_type", "") else {}


def _small(name: str, value: Any, layers: Any) -> Any:
    """A smaller value of a field; None to leave it."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int):
        if re.fullmatch(r"(pad|bos|eos|sep|cls|mask|unk|decoder_start)_token_id", name):
            return min(value, 3)
        if name.endswith(("token_id", "token_index")):
            return min(value, VOCAB - 10 + len(name) % 8)
        size = next((size for pattern, size in SIZES if re.fullmatch(pattern, name)), None)
        return None if size is None else min(value, size) if value > 0 else None
    if name.endswith("token_id") and isinstance(value, list):
        return min(value[0], 3) if value and isinstance(value[0], int) else None
    if isinstance(value, list) and isinstance(layers, int) and layers > LAYERS and len(value) == layers:
        return _both(value)
    if name == "rope_parameters" and isinstance(value, Mapping) and "mrope_section" in value:
        return {**value, "mrope_section": _sections(value.get("partial_rotary_factor") or 1.0)}
    return None


def _sections(rotated: float) -> list[int]:
    """The parts of half a head that turn by time, height and width."""
    half = int(HEAD * rotated) // 2
    other = max(half // 3, 1)
    return [half - other - (half > 2), other, int(half > 2)]


def _both(each: list[Any]) -> list[Any]:
    """Two layers of a list with a value for each, two that differ if some do."""
    other = next((one for one in each if one != each[0]), each[1])
    return [each[0], other] if LAYERS == 2 else each[:LAYERS]
