"""Decoders that classify a sequence by its last token that is no padding, as transformers ships them."""

import torch
from torch import Tensor, nn

SIZES = {"vocab_size": 32, "pad_token_id": 0, "num_labels": 3}
Given = tuple[nn.Module, list[dict[str, Tensor]], dict[str, tuple[str, ...]]]


def _of(module: nn.Module) -> Given:
    draw = torch.Generator().manual_seed(1)
    batches = []
    for _ in range(2):
        ids = torch.randint(1, 32, (4, 6), generator=draw)
        ids[0, 4:] = ids[3, 2:] = 0
        batches.append({"input_ids": ids, "labels": torch.randint(0, 3, (4,), generator=draw)})
    return module.double(), batches, {"input_ids": ("batch", "seq"), "labels": ("batch",)}


def gpt2() -> Given:
    from transformers import GPT2Config, GPT2ForSequenceClassification

    torch.manual_seed(0)
    off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    ends = {"bos_token_id": 1, "eos_token_id": 2}
    config = GPT2Config(n_positions=8, n_embd=16, n_layer=2, n_head=2, **off, **ends, **SIZES)
    return _of(GPT2ForSequenceClassification(config))


def llama() -> Given:
    from transformers import LlamaConfig, LlamaForSequenceClassification

    torch.manual_seed(0)
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    config = LlamaConfig(hidden_size=16, intermediate_size=32, num_hidden_layers=2, **heads, **SIZES)
    return _of(LlamaForSequenceClassification(config))
