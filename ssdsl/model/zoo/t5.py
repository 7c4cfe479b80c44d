"""T5 (Raffel et al. 2020, arXiv 1910.10683): `T5ForConditionalGeneration` of transformers with random weights.

The sizes are those of the SuperScaler paper's evaluation (Lin et al. 2023, arXiv 2301.08984): layers of encoder and of
decoder, hidden, heads and vocabulary are 24/2048/32/512k, 32/3072/48/1024k, 32/4096/64/1536k and 32/6144/96/2048k, with
a sequence of 1024. k is a thousand, so 32 devices divide all vocabularies. The one embedding also gives the scores.
Heads are 64 wide, the feed-forward is 4 x hidden with ReLU, as in the first T5. The batch of 256 is our choice.

In fp16 transformers looks behind each layer whether any number of the batch is infinite. Micro-batches of a pipeline
cannot know that of each other, so those need fp32 or bf16.
"""

from dataclasses import dataclass
from typing import Any

from ssdsl.model.zoo.seq2seq import START, Seq2Seq

ABOUT = "T5's architecture, a target from a source"
BUCKETS = 32  # of distances between positions


@dataclass(frozen=True, slots=True, kw_only=True)
class T5(Seq2Seq):
    """The numbers of a T5."""

    def parameters(self) -> int:
        """12 hidden x hidden matrices a layer of the encoder, 16 of the decoder, without biases; norms; the embedding.

        The first layer of each half learns what distances add to the scores of each head.
        """
        encoder = 12 * self.hidden**2 + 2 * self.hidden
        decoder = 16 * self.hidden**2 + 3 * self.hidden
        ends = (self.vocab + 2) * self.hidden + 2 * BUCKETS * self.heads
        return self.layers * (encoder + decoder) + ends

    def module(self, library: Any) -> Any:
        return library.T5ForConditionalGeneration(
            library.T5Config(
                vocab_size=self.vocab,
                d_model=self.hidden,
                d_kv=self.hidden // self.heads,
                d_ff=4 * self.hidden,
                num_layers=self.layers,
                num_heads=self.heads,
                relative_attention_num_buckets=BUCKETS,
                dropout_rate=self.dropout,
                attn_implementation=self.attention,
                decoder_start_token_id=START,
                use_cache=False,
            )
        )


SIZES = {
    "tiny": T5(layers=2, hidden=32, heads=4, seq=16, batch=8, vocab=256),
    "3.9b": T5(layers=24, hidden=2048, heads=32, seq=1024, batch=256, vocab=512_000),
    "12b": T5(layers=32, hidden=3072, heads=48, seq=1024, batch=256, vocab=1_024_000),
    "21b": T5(layers=32, hidden=4096, heads=64, seq=1024, batch=256, vocab=1_536_000),
    "46b": T5(layers=32, hidden=6144, heads=96, seq=1024, batch=256, vocab=2_048_000),
}
LAPTOP = ("tiny",)
