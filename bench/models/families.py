"""The families of `transformers`: each with its default config, in which only sizes are changed.

What a family does by default stays as it is: dropout, stochastic depth, the kind of attention, caches, ties, routing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ssdsl.model.source import Model
from ssdsl.model.zoo.build import construct

BATCH, SEQ, WIDTH, FFN, HEADS, LAYERS, VOCAB = 8, 8, 32, 64, 4, 4, 64
PIXELS, PATCH, FRAMES, MELS = 32, 8, 16, 8
Inputs = tuple[dict[str, torch.Tensor], dict[str, tuple[str, ...]]]
Axes = tuple[str, ...]
TOKENS: Axes = ("batch", "seq")


@dataclass(frozen=True, slots=True)
class Family:
    """A config of `transformers` by its class, the sizes changed in it, and for each head the class of its model."""

    config: str
    sizes: Mapping[str, Any]
    heads: Mapping[str, str]


def build(family: str, head: str, *, dropout: bool = True, batches: int = 2) -> Model:
    """The model of a family with one of its heads; without `dropout` all its probabilities are zero."""
    row = FAMILIES[family]

    def make(library: Any) -> Any:
        config = getattr(library, row.config)(**row.sizes, **CHANGES.get(head, {}))
        if not dropout:
            _zero_probabilities(config)
        return getattr(library, row.heads[head])(config)

    module, _ = construct(family, make, "fp32", 0, "hash", False)
    generator = torch.Generator().manual_seed(1)
    made = [INPUTS[f"{family} {head}" if f"{family} {head}" in INPUTS else head](generator) for _ in range(batches)]
    return Model(f"{family} {head}", module, tuple(batch for batch, _ in made), made[0][1])


def _zero_probabilities(config: Any) -> None:
    for name, value in vars(config).items():
        if "drop" in name and isinstance(value, (int, float)) and not isinstance(value, bool):
            setattr(config, name, 0.0)


# -- inputs -----------------------------------------------------------------------------------------------------------


def _tokens(generator: torch.Generator, length: int = SEQ) -> torch.Tensor:
    """Tokens that are no special ones."""
    return torch.randint(4, VOCAB, (BATCH, length), generator=generator)


def _mask() -> torch.Tensor:
    """Sequences of different lengths, filled up at their end."""
    lengths = torch.tensor([SEQ - i % 3 for i in range(BATCH)])
    return (torch.arange(SEQ) < lengths[:, None]).long()


def _classes(generator: torch.Generator) -> torch.Tensor:
    return torch.randint(2, (BATCH,), generator=generator)


def _causal(generator: torch.Generator) -> Inputs:
    tokens = _tokens(generator)
    return {"input_ids": tokens, "labels": tokens.clone()}, {"input_ids": TOKENS, "labels": TOKENS}


def _masked(generator: torch.Generator) -> Inputs:
    """A third of the tokens has to be found."""
    tokens, mask = _tokens(generator), _mask()
    labels = torch.where(torch.rand(tokens.shape, generator=generator) < 0.3, tokens, -100)
    named = {"input_ids": tokens, "attention_mask": mask, "labels": labels}
    return named, dict.fromkeys(named, TOKENS)


def _classified(generator: torch.Generator) -> Inputs:
    named = {"input_ids": _tokens(generator), "attention_mask": _mask(), "labels": _classes(generator)}
    return named, {"input_ids": TOKENS, "attention_mask": TOKENS, "labels": ("batch",)}


def _translated(generator: torch.Generator) -> Inputs:
    """A source and a target of another length; what the target lacks is no label."""
    labels = _tokens(generator, SEQ - 2)
    labels[::3, -1] = -100
    named = {"input_ids": _tokens(generator), "attention_mask": _mask(), "labels": labels}
    return named, {"input_ids": TOKENS, "attention_mask": TOKENS, "labels": ("batch", "target")}


def _spoken(generator: torch.Generator) -> Inputs:
    sound = torch.randn(BATCH, MELS, FRAMES, generator=generator)
    named = {"input_features": sound, "labels": _tokens(generator, SEQ)}
    return named, {"input_features": ("batch", "mel", "frame"), "labels": TOKENS}


def _spoken_class(generator: torch.Generator) -> Inputs:
    sound = torch.randn(BATCH, MELS, FRAMES, generator=generator)
    named = {"input_features": sound, "labels": _classes(generator)}
    return named, {"input_features": ("batch", "mel", "frame"), "labels": ("batch",)}


def _pictured(generator: torch.Generator) -> Inputs:
    named = {"pixel_values": torch.randn(BATCH, 3, PIXELS, PIXELS, generator=generator), "labels": _classes(generator)}
    return named, {"pixel_values": ("batch", "channel", "height", "width"), "labels": ("batch",)}


def _answered(generator: torch.Generator) -> Inputs:
    """A pooled sequence needs an end-of-sequence token at the same number of places in each row."""
    named, axes = _classified(generator)
    named["input_ids"][:, -3] = 2
    return named, axes


INPUTS: dict[str, Callable[[torch.Generator], Inputs]] = {
    "causal": _causal,
    "masked": _masked,
    "sequence": _classified,
    "seq2seq": _translated,
    "image": _pictured,
    "whisper seq2seq": _spoken,
    "whisper sequence": _spoken_class,
    "bart sequence": _answered,
}
CHANGES: dict[str, dict[str, Any]] = {}

# -- the families -----------------------------------------------------------------------------------------------------


def _decoder(name: str, **more: Any) -> Family:
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
    heads = {"causal": f"{name}ForCausalLM", "sequence": f"{name}ForSequenceClassification"}
    return Family(f"{name}Config", sizes | more, heads)


def _encoder(name: str) -> Family:
    sizes = {
        "vocab_size": VOCAB,
        "hidden_size": WIDTH,
        "intermediate_size": FFN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "max_position_embeddings": 2 * SEQ,
    }
    return Family(
        f"{name}Config", sizes, {"masked": f"{name}ForMaskedLM", "sequence": f"{name}ForSequenceClassification"}
    )


EXPERTS = {"num_experts_per_tok": 2}

FAMILIES: dict[str, Family] = {
    "gpt2": Family(
        "GPT2Config",
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
        {"causal": "GPT2LMHeadModel", "sequence": "GPT2ForSequenceClassification"},
    ),
    "llama": _decoder("Llama"),
    "mistral": _decoder("Mistral"),
    "qwen2": _decoder("Qwen2"),
    "qwen3": _decoder("Qwen3", head_dim=8),
    "gemma2": _decoder("Gemma2", head_dim=8),
    "phi3": _decoder("Phi3"),
    "mixtral": _decoder("Mixtral", num_local_experts=4, **EXPERTS),
    "qwen3_moe": _decoder("Qwen3Moe", num_experts=4, moe_intermediate_size=FFN // 2, head_dim=8, **EXPERTS),
    "bert": _encoder("Bert"),
    "roberta": _encoder("Roberta"),
    "t5": Family(
        "T5Config",
        {
            "vocab_size": VOCAB,
            "d_model": WIDTH,
            "d_kv": WIDTH // HEADS,
            "d_ff": FFN,
            "num_layers": LAYERS // 2,
            "num_heads": HEADS,
            "decoder_start_token_id": 0,  # as the published configs have it, which the class has not
        },
        {"seq2seq": "T5ForConditionalGeneration"},
    ),
    "bart": Family(
        "BartConfig",
        {
            "vocab_size": VOCAB,
            "d_model": WIDTH,
            "max_position_embeddings": 2 * SEQ,
            **{f"{side}_layers": LAYERS // 2 for side in ("encoder", "decoder")},
            **{f"{side}_ffn_dim": FFN for side in ("encoder", "decoder")},
            **{f"{side}_attention_heads": HEADS for side in ("encoder", "decoder")},
            "num_labels": 2,
        },
        {"seq2seq": "BartForConditionalGeneration", "sequence": "BartForSequenceClassification"},
    ),
    "vit": Family(
        "ViTConfig",
        {
            "hidden_size": WIDTH,
            "intermediate_size": FFN,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "image_size": PIXELS,
            "patch_size": PATCH,
        },
        {"image": "ViTForImageClassification"},
    ),
    "swin": Family(
        "SwinConfig",
        {"embed_dim": WIDTH, "depths": [2, 2], "num_heads": [2, 4], "image_size": PIXELS, "window_size": 4},
        {"image": "SwinForImageClassification"},
    ),
    "convnext": Family(
        "ConvNextConfig",
        {"hidden_sizes": [16, 32], "depths": [2, 2], "num_stages": 2, "image_size": PIXELS},
        {"image": "ConvNextForImageClassification"},
    ),
    "resnet": Family(
        "ResNetConfig",
        {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [2, 2]},
        {"image": "ResNetForImageClassification"},
    ),
    "whisper": Family(
        "WhisperConfig",
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
        {"seq2seq": "WhisperForConditionalGeneration", "sequence": "WhisperForAudioClassification"},
    ),
    "mamba": Family(
        "MambaConfig",
        {"vocab_size": VOCAB, "hidden_size": WIDTH, "num_hidden_layers": LAYERS // 2, "state_size": 4},
        {"causal": "MambaForCausalLM"},
    ),
}
