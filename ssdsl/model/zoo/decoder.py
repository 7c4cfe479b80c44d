"""What the decoders with rotary positions share: Llama, and Mixtral, whose feed-forward is a mixture of experts."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ssdsl.model.zoo.build import token_model
from ssdsl.model.zoo.options import DTYPES, choice

if TYPE_CHECKING:
    from ssdsl.model.source import Model
    from ssdsl.runtime.bits import Generator


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """The numbers of a decoder; `keys` are the heads of keys and values, `theta` is the base of the rotary angles."""

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
        if self.hidden % (2 * self.heads):
            return f"hidden = {self.hidden} is no multiple of 2 x heads = {2 * self.heads}: rotary angles turn pairs"
        if self.heads % self.keys:
            return f"heads = {self.heads} is no multiple of keys = {self.keys}"
        return ""

    def parameters(self) -> int:
        """Attention, the feed-forward and two norms a layer; both embeddings, the last norm.

        Queries and the output are hidden x hidden, keys and values as much smaller as they have fewer heads.
        """
        attention = 2 * self.hidden**2 + 2 * self.hidden * (self.hidden // self.heads * self.keys)
        layer = attention + self.feed_forward() + 2 * self.hidden
        return self.layers * layer + (2 * self.vocab + 1) * self.hidden

    def feed_forward(self) -> int:
        """The parameters of one layer's: three matrices."""
        return 3 * self.hidden * self.ffn

    def build(self, name: str, seed: int, generator: "Generator", meta: bool) -> "Model":
        return token_model(name, self.module, self.dtype, (self.vocab, self.batch, self.seq), seed, generator, meta)

    def module(self, library: Any) -> Any:
        """The module, from the transformers library."""
        raise NotImplementedError

    def settings(self) -> dict[str, Any]:
        """What a config of transformers is given."""
        return {
            "vocab_size": self.vocab,
            "hidden_size": self.hidden,
            "intermediate_size": self.ffn,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.keys,
            "max_position_embeddings": self.seq,
            "rope_parameters": {"rope_type": "default", "rope_theta": float(self.theta)},
            "attn_implementation": self.attention,
            "use_cache": False,
            "tie_word_embeddings": False,
        }
