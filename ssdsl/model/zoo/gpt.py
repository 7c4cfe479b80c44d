"""GPT: `GPT2LMHeadModel` of transformers with random weights, predicting the next token.

The sizes up to 13b, and 175b, are those of GPT-3 (Brown et al. 2020, arXiv 2005.14165, table 2.1) with its sequence
length of 2048 and its batch sizes in sequences. Three numbers differ: 2.6b (there 2.7B) is named as the Alpa paper
does, 1.3b has 16 heads of the table's 128 because its 24 do not divide 2048, and 13b is 5120 wide because the table's
5140 is no multiple of 40 heads. The others:

- 1.7b to 1t: Narayanan et al. 2021, arXiv 2104.04473, table 1, with its batches; 39b, 530b and 1t are its 39.1, 529.6
  and 1008.0 B. The batch of 22b is that of Korthikanti et al. 2022, arXiv 2205.05198, table 3, where 530b has 280.
- 15b: of the SuperScaler paper (Lin et al. 2023, arXiv 2301.08984), which trains it and smaller ones at a sequence
  length of 16384: `-16k`. The batch of 256 is that of the same paper's Swin.
- 1.5b: Qi et al. 2023, arXiv 2401.10241, table 3, with 24 micro-batches of 6. Its 22 layers and the two ends of a
  pipeline of 8 weigh as three layers a stage.

The vocabulary is 51200: GPT-2's 50257 padded as Megatron-LM pads it, to a multiple of 128 x 8 devices, so that it can
be split.
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


def _published(layers: int, hidden: int, heads: int, batch: int, seq: int = 2048) -> Gpt:
    """A size of a paper."""
    return Gpt(layers, hidden, heads, seq, batch, vocab=51200)


SIZES = {
    "tiny": Gpt(layers=4, hidden=128, heads=4, seq=64, batch=8, vocab=512),
    "small": Gpt(layers=4, hidden=256, heads=4, seq=128, batch=8, vocab=1000),
    "350m": _published(24, 1024, 16, 256),
    "1.3b": _published(24, 2048, 16, 512),
    "1.3b-16k": _published(24, 2048, 16, 256, seq=16384),
    "1.5b": _published(22, 2304, 24, 144, seq=1024),
    "1.7b": _published(24, 2304, 24, 512),
    "2.6b": _published(32, 2560, 32, 512),
    "2.6b-16k": _published(32, 2560, 32, 256, seq=16384),
    "3.6b": _published(30, 3072, 32, 512),
    "6.7b": _published(32, 4096, 32, 1024),
    "6.7b-16k": _published(32, 4096, 32, 256, seq=16384),
    "7.5b": _published(36, 4096, 32, 512),
    "13b": _published(40, 5120, 40, 1024),
    "15b": _published(48, 5120, 40, 256),
    "15b-16k": _published(48, 5120, 40, 256, seq=16384),
    "18.4b": _published(40, 6144, 48, 1024),
    "22b": _published(48, 6144, 64, 4),
    "39b": _published(48, 8192, 64, 1536),
    "76.1b": _published(60, 10240, 80, 1792),
    "145.6b": _published(80, 12288, 96, 2304),
    "175b": _published(96, 12288, 96, 1536),
    "310.1b": _published(96, 16384, 128, 2160),
    "530b": _published(105, 20480, 128, 2520),
    "1t": _published(128, 25600, 160, 3072),
}
LAPTOP = ("tiny", "small")
