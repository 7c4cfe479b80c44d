"""mBART (Liu et al. 2020, arXiv 2001.08210): `MBartForConditionalGeneration` of transformers, random weights.

2b is the size of the SuperScaler paper's evaluation (Lin et al. 2023, arXiv 2301.08984): 8 + 8 layers, hidden 2048, 16
heads, a sequence of 1024 and a vocabulary of 500 000, which 32 devices divide: half of the weights are the one
embedding. The feed-forward is 4 x hidden wide, as in the released mBART. The batch of 256 is our choice.
"""

from dataclasses import dataclass
from typing import Any

from ssdsl.model.zoo.seq2seq import Seq2Seq

ABOUT = "mBART's architecture, a target from a source"
OFFSET = 2  # positions are counted from two


@dataclass(frozen=True, slots=True, kw_only=True)
class MBart(Seq2Seq):
    """The numbers of an mBART."""

    def parameters(self) -> int:
        """12 hidden x hidden matrices a layer of the encoder, 16 of the decoder, with biases and norms; embeddings.

        Each half has its positions, and a norm behind the embedding and one at its end.
        """
        encoder = 12 * self.hidden**2 + 13 * self.hidden
        decoder = 16 * self.hidden**2 + 19 * self.hidden
        ends = (self.vocab + 2 * (self.seq + OFFSET) + 8) * self.hidden
        return self.layers * (encoder + decoder) + ends

    def module(self, library: Any) -> Any:
        return library.MBartForConditionalGeneration(
            library.MBartConfig(
                vocab_size=self.vocab,
                d_model=self.hidden,
                encoder_layers=self.layers,
                decoder_layers=self.layers,
                encoder_attention_heads=self.heads,
                decoder_attention_heads=self.heads,
                encoder_ffn_dim=4 * self.hidden,
                decoder_ffn_dim=4 * self.hidden,
                max_position_embeddings=self.seq,
                dropout=self.dropout,
                attn_implementation=self.attention,
                use_cache=False,
            )
        )


SIZES = {
    "tiny": MBart(layers=2, hidden=32, heads=4, seq=16, batch=8, vocab=256),
    "2b": MBart(layers=8, hidden=2048, heads=16, seq=1024, batch=256, vocab=500_000),
}
LAPTOP = ("tiny",)
