"""Llama: `LlamaForCausalLM` of transformers with random weights, predicting the next token.

7b and 70b are Llama 2 (Touvron et al. 2023, arXiv 2307.09288: table 1; the widths of the released configs), with 8
heads of keys and values for the 64 of 70b, a sequence of 4096 and a batch of 4 million tokens. 405b is Llama 3.1
(Llama Team 2024, arXiv 2407.21783: table 3 and section 3.4.1), with a vocabulary of 128 256, a sequence of 8192 and a
batch of 8 million tokens, as in the second of the three phases of its training.
"""

from dataclasses import dataclass
from typing import Any

from ssdsl.model.zoo.decoder import Decoder

ABOUT = "Llama's architecture, next-token loss"


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama(Decoder):
    """The numbers of a Llama."""

    def describe(self) -> str:
        return f"{self.layers} layers, hidden {self.hidden}, {self.heads}-{self.keys} heads, seq {self.seq}"

    def module(self, library: Any) -> Any:
        return library.LlamaForCausalLM(library.LlamaConfig(**self.settings()))


SIZES = {
    "tiny": Llama(layers=2, hidden=64, heads=4, keys=2, ffn=128, seq=32, batch=8, vocab=256),
    "7b": Llama(layers=32, hidden=4096, heads=32, keys=32, ffn=11008, seq=4096, batch=1024, vocab=32000),
    "70b": Llama(layers=80, hidden=8192, heads=64, keys=8, ffn=28672, seq=4096, batch=1024, vocab=32000),
    "405b": Llama(
        layers=126, hidden=16384, heads=128, keys=8, ffn=53248, seq=8192, batch=1024, vocab=128256, theta=500_000
    ),
}
LAPTOP = ("tiny",)
