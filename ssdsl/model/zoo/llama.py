"""Llama: `LlamaForCausalLM` of transformers with random weights, predicting the next token.

7b and 70b are Llama 2 (Touvron et al. 2023, arXiv 2307.09288: table 1; the widths of the released configs), with 8
heads of keys and values for the 64 of 70b, a sequence of 4096 and a batch of 4 million tokens. 405b is Llama 3.1
(Llama Team 2024, arXiv 2407.21783: table 3 and section 3.4.1), with a vocabulary of 128 256, a sequence of 8192 and a
batch of 8 million tokens, as in the second of the three phases of its training.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ssdsl.model.zoo.build import TOKENS, construct, token_batches
from ssdsl.model.zoo.options import DTYPES, choice

if TYPE_CHECKING:
    from ssdsl.model.source import Model
    from ssdsl.runtime.bits import Generator

ABOUT = "Llama's architecture, next-token loss"


@dataclass(frozen=True, slots=True)
class Llama:
    """The numbers of a Llama; `keys` are the heads of keys and values, `theta` is the base of the rotary angles."""

    layers: int
    hidden: int
    heads: int
    keys: int
    ffn: int
    seq: int
    batch: int
    vocab: int
    theta: int = 10_000
    dtype: str = choice(DTYPES, "fp32")
    attention: str = choice(("sdpa", "eager"), "sdpa")

    def problem(self) -> str:
        return head_problem(self.hidden, self.heads, self.keys)

    def parameters(self) -> int:
        """Attention, the three matrices of the feed-forward and two norms a layer; both embeddings, the last norm."""
        attention = attention_parameters(self.hidden, self.heads, self.keys)
        layer = attention + 3 * self.hidden * self.ffn + 2 * self.hidden
        return self.layers * layer + (2 * self.vocab + 1) * self.hidden

    def describe(self) -> str:
        return f"{self.layers} layers, hidden {self.hidden}, {self.heads}-{self.keys} heads, seq {self.seq}"

    def build(self, name: str, seed: int, generator: "Generator", meta: bool) -> "Model":
        from ssdsl.model.source import Model

        module, recipes = construct(name, self._module, self.dtype, seed, generator, meta)
        return Model(name, module, token_batches(self.vocab, self.batch, self.seq, seed), TOKENS, generator, recipes)

    def _module(self, library: Any) -> Any:
        return library.LlamaForCausalLM(self._config(library))

    def _config(self, library: Any) -> object:
        return library.LlamaConfig(
            vocab_size=self.vocab,
            hidden_size=self.hidden,
            intermediate_size=self.ffn,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.keys,
            max_position_embeddings=self.seq,
            rope_parameters={"rope_type": "default", "rope_theta": float(self.theta)},
            attn_implementation=self.attention,
            use_cache=False,
            tie_word_embeddings=False,
        )


def head_problem(hidden: int, heads: int, keys: int) -> str:
    """Why there is no attention of these numbers, or nothing."""
    if hidden % (2 * heads):
        return f"hidden = {hidden} is no multiple of 2 x heads = {2 * heads}: rotary angles turn pairs"
    if heads % keys:
        return f"heads = {heads} is no multiple of keys = {keys}"
    return ""


def attention_parameters(hidden: int, heads: int, keys: int) -> int:
    """Queries and the output are hidden x hidden, keys and values as much smaller as they have fewer heads."""
    return 2 * hidden**2 + 2 * hidden * (hidden // heads * keys)


SIZES = {
    "tiny": Llama(layers=2, hidden=64, heads=4, keys=2, ffn=128, seq=32, batch=8, vocab=256),
    "7b": Llama(layers=32, hidden=4096, heads=32, keys=32, ffn=11008, seq=4096, batch=1024, vocab=32000),
    "70b": Llama(layers=80, hidden=8192, heads=64, keys=8, ffn=28672, seq=4096, batch=1024, vocab=32000),
    "405b": Llama(
        layers=126, hidden=16384, heads=128, keys=8, ffn=53248, seq=8192, batch=1024, vocab=128256, theta=500_000
    ),
}
LAPTOP = ("tiny",)
