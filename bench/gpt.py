"""The small GPT that every contender trains: the zoo's own, so that ours and the peers start from the same numbers."""

from types import SimpleNamespace

from torch import Tensor
from transformers import GPT2LMHeadModel

from bench.contenders import LONG
from ssdsl.model.load import load
from ssdsl.model.zoo import ZOO

# hidden 256, 4 layers, 4 heads, seq 128, batch 8, vocabulary 1000; tied embeddings, no dropout
SIZE = SimpleNamespace(**ZOO["gpt"].sizes["small"].numbers)

Batch = dict[str, Tensor]


def build_small() -> tuple[GPT2LMHeadModel, tuple[Batch, ...]]:
    """The model and its batches, the same in every process."""
    model = load("gpt:small")
    return model.module, model.batches


def build_long() -> tuple[GPT2LMHeadModel, tuple[Batch, ...]]:
    """The same layers on one long sequence, of which attention is a larger part of the work."""
    model = load(LONG)
    return model.module, model.batches
