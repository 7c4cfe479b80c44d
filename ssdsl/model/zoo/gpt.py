"""GPT: `GPT2LMHeadModel` of transformers with random weights, predicting the next token.

The paper sizes are those of GPT-3 (Brown et al. 2020, arXiv 2005.14165, table 2.1) with its sequence length of 2048 and
its batch sizes in sequences. Three numbers differ: 2.6b (there 2.7B) is named as the Alpa paper does, 1.3b has 16 heads
of the table's 128 because its 24 do not divide 2048, and 13b is 5120 wide because the table's 5140 is no multiple of 40
heads. The vocabulary is 51200: GPT-2's 50257 padded as Megatron-LM pads it, to a multiple of 128 x 8 devices, so that
it can be split.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ssdsl.model.zoo.build import token_model
from ssdsl.model.zoo.options import DTYPES, choice

if TYPE_CHECKING:
    from ssdsl.model.source import Model
    from ssdsl.runtime.bits import Generator

ABOUT = "GPT-2's architecture, next-token loss"


@dataclass(frozen=True, slots=True)
class Gpt:
    """The numbers of a GPT; `batch` counts sequences, `dropout` is the probability everywhere."""

    layers: int
    hidden: int
    heads: int
    seq: int
    batch: int
    vocab: int
    dtype: str = choice(DTYPES, "fp32")
    attention: str = choice(("sdpa", "eager"), "sdpa")
    dropout: float = 0.0

    def problem(self) -> str:
        if self.hidden % self.heads:
            return f"hidden = {self.hidden} is no multiple of heads = {self.heads}"
        return ""

    def parameters(self) -> int:
        """Twelve hidden x hidden matrices a layer with their biases and norms, the embeddings, the last norm."""
        layer = 12 * self.hidden**2 + 13 * self.hidden
        return self.layers * layer + (self.vocab + self.seq + 2) * self.hidden

    def describe(self) -> str:
        return f"{self.layers} layers, hidden {self.hidden}, {self.heads} heads, seq {self.seq}, vocab {self.vocab}"

    def build(self, name: str, seed: int, generator: "Generator", meta: bool) -> "Model":
        return token_model(name, self._module, self.dtype, (self.vocab, self.batch, self.seq), seed, generator, meta)

    def _module(self, library: Any) -> Any:
        module = library.GPT2LMHeadModel(self._config(library))
        module.loss_type = "ForCausalLM"  # GPT2LMHeadModel names none and warns that it falls back to this one
        return module

    def _config(self, library: Any) -> object:
        return library.GPT2Config(
            vocab_size=self.vocab,
            n_positions=self.seq,
            n_embd=self.hidden,
            n_layer=self.layers,
            n_head=self.heads,
            attn_pdrop=self.dropout,
            embd_pdrop=self.dropout,
            resid_pdrop=self.dropout,
            attn_implementation=self.attention,
            use_cache=False,
            bos_token_id=0,
            eos_token_id=0,
        )


SIZES = {
    "tiny": Gpt(layers=4, hidden=128, heads=4, seq=64, batch=8, vocab=512),
    "small": Gpt(layers=4, hidden=256, heads=4, seq=128, batch=8, vocab=1000),
    "350m": Gpt(layers=24, hidden=1024, heads=16, seq=2048, batch=256, vocab=51200),
    "1.3b": Gpt(layers=24, hidden=2048, heads=16, seq=2048, batch=512, vocab=51200),
    "2.6b": Gpt(layers=32, hidden=2560, heads=32, seq=2048, batch=512, vocab=51200),
    "6.7b": Gpt(layers=32, hidden=4096, heads=32, seq=2048, batch=1024, vocab=51200),
    "13b": Gpt(layers=40, hidden=5120, heads=40, seq=2048, batch=1024, vocab=51200),
    "175b": Gpt(layers=96, hidden=12288, heads=96, seq=2048, batch=1536, vocab=51200),
}
LAPTOP = ("tiny", "small")
