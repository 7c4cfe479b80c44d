"""The sizes of the small GPT that contenders train: hidden 256, 4 layers, 4 heads, seq 128, batch 8, vocabulary 1000;
tied embeddings, no dropout."""

from types import SimpleNamespace

from ssdsl.model.zoo import ZOO

SIZE = SimpleNamespace(**ZOO["gpt"].sizes["small"].numbers)
