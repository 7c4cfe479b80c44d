"""The families of `transformers`: each with its default config, in which only sizes are changed.

What a family does by default stays as it is: dropout, stochastic depth, the kind of attention, caches, ties, routing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ssdsl.model.load.hf import build as build_config
from ssdsl.model.load.hf import transformers_library
from ssdsl.model.load.hf_tasks import Sizes
from ssdsl.model.load.model import Model
from ssdsl.record import replace

BATCH, SEQ, WIDTH, FFN, HEADS, LAYERS, VOCAB = 8, 8, 32, 64, 4, 4, 64
PIXELS, PATCH, FRAMES, MELS = 32, 8, 16, 8
SIZES = Sizes(BATCH, SEQ, SEQ - 2, PIXELS)


@dataclass(frozen=True, slots=True)
class Family:
    """The sizes changed in a type's config, and the tasks that it is trained for."""

    sizes: Mapping[str, Any]
    heads: tuple[str, ...]


def build(family: str, head: str, *, dropout: bool = True) -> Model:
    """The model of a family with a head, and two batches. Without `dropout` all its probabilities are zero."""
    config = transformers_library(family).CONFIG_MAPPING[family](**FAMILIES[family].sizes)
    if not dropout:
        _zero_probabilities(config)
    model = build_config(f"{family} {head}", config, head, SIZES)
    model = replace(model, batches=model.batches[:2])
    if (family, head) == ("bart", "sequence"):  # it takes what stands at the end token: each row has one
        for batch in model.batches:
            batch["input_ids"][:, -3] = 2
    return model


def _zero_probabilities(config: Any) -> None:
    for name, value in vars(config).items():
        if "drop" in name and isinstance(value, (int, float)) and not isinstance(value, bool):
            setattr(config, name, 0.0)


# -- the families -----------------------------------------------------------------------------------------------------


def _decoder(**more: Any) -> Family:
    """A decoder in the manner of Llama: heads in groups, a gated feed-forward."""
    sizes = {
        "vocab_size": VOCAB,
        "hidden_size": WIDTH,
        "intermediate_size": FFN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": 2,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return Family(sizes | more, ("causal", "sequence"))


def _encoder() -> Family:
    sizes = {
        "vocab_size": VOCAB,
        "hidden_size": WIDTH,
        "intermediate_size": FFN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "max_position_embeddings": 2 * SEQ,
    }
    return Family(sizes, ("masked", "sequence"))


EXPERTS = {"num_experts_per_tok": 2}

FAMILIES: dict[str, Family] = {
    "gpt2": Family(
        {
            "vocab_size": VOCAB,
            "n_positions": 2 * SEQ,
            "n_embd": WIDTH,
            "n_layer": LAYERS,
            "n_head": HEADS,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        ("causal", "sequence"),
    ),
    "llama": _decoder(),
    "mistral": _decoder(),
    "qwen2": _decoder(),
    "qwen3": _decoder(head_dim=8),
    "gemma2": _decoder(head_dim=8),
    "phi3": _decoder(),
    "mixtral": _decoder(num_local_experts=4, **EXPERTS),
    "qwen3_moe": _decoder(num_experts=4, moe_intermediate_size=FFN // 2, head_dim=8, **EXPERTS),
    "bert": _encoder(),
    "roberta": _encoder(),
    "t5": Family(
        {
            "vocab_size": VOCAB,
            "d_model": WIDTH,
            "d_kv": WIDTH // HEADS,
            "d_ff": FFN,
            "num_layers": LAYERS // 2,
            "num_heads": HEADS,
        },
        ("seq2seq",),
    ),
    "bart": Family(
        {
            "vocab_size": VOCAB,
            "d_model": WIDTH,
            "max_position_embeddings": 2 * SEQ,
            **{f"{side}_layers": LAYERS // 2 for side in ("encoder", "decoder")},
            **{f"{side}_ffn_dim": FFN for side in ("encoder", "decoder")},
            **{f"{side}_attention_heads": HEADS for side in ("encoder", "decoder")},
            "num_labels": 2,
        },
        ("seq2seq", "sequence"),
    ),
    "vit": Family(
        {
            "hidden_size": WIDTH,
            "intermediate_size": FFN,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "image_size": PIXELS,
            "patch_size": PATCH,
        },
        ("image",),
    ),
    "swin": Family(
        {"embed_dim": WIDTH, "depths": [2, 2], "num_heads": [2, 4], "image_size": PIXELS, "window_size": 4},
        ("image",),
    ),
    "convnext": Family(
        {"hidden_sizes": [16, 32], "depths": [2, 2], "num_stages": 2, "image_size": PIXELS},
        ("image",),
    ),
    "resnet": Family(
        {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [2, 2]},
        ("image",),
    ),
    "whisper": Family(
        {
            "vocab_size": VOCAB,
            "num_mel_bins": MELS,
            "d_model": WIDTH,
            "max_source_positions": FRAMES // 2,
            "max_target_positions": 2 * SEQ,
            **{f"{side}_layers": LAYERS // 2 for side in ("encoder", "decoder")},
            **{f"{side}_ffn_dim": FFN for side in ("encoder", "decoder")},
            **{f"{side}_attention_heads": HEADS for side in ("encoder", "decoder")},
            "classifier_proj_size": WIDTH,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 3,
        },
        ("seq2seq", "sequence"),
    ),
    "mamba": Family(
        {"vocab_size": VOCAB, "hidden_size": WIDTH, "num_hidden_layers": LAYERS // 2, "state_size": 4},
        ("causal",),
    ),
}
