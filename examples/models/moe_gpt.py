"""A GPT with mixtures of experts in the manner of the Switch Transformer (Fedus et al. 2021, arXiv 2101.03961).

A router sends each token to one expert, whose result is multiplied by its probability; or with `top=2` to the two best,
with shares that sum to one, as GShard does (Lepikhin et al. 2020, arXiv 2006.16668). An expert has `capacity_percent` /
100 x top x tokens / experts slots in each group of tokens; the first tokens take them, the rest are dropped. A group is
a sequence (as in GShard, whose groups are some thousand tokens), or with `group=batch` the whole batch. The
load-balancing loss is Switch's equation 4 for each group, times 0.01; the z-loss is that of ST-MoE (Zoph et al. 2022,
arXiv 2202.08906), times 0.001. Tokens are sent by products with one-hot masks, as GShard's algorithm 2 does: if experts
are split on the devices that split the batch, that is one all_to_all each way. `shared=1` adds a feed-forward that sees
all tokens, like the residual experts of DeepSpeed (Rajbhandari et al. 2022, arXiv 2201.05596), of `shared` times the
inner dimension.

Routing is deterministic. Scores are compared in fp32; if some are exactly equal, the lowest expert number wins
(`argmax`), and tokens take slots in the order of the sequence. A plan may add up scores in another order, so a token
whose two best scores differ by no more than rounding may take another expert than on one device.

- `base` has the numbers of Switch-Base (table 9: hidden 768, 12 heads, 128 experts in every second layer), whose 12
  layers of encoder and decoder each are 24 layers here; two matrices of 3072 have the parameters of the paper's three
  of 2048. It has 7.4 billion parameters, as there. Batch and sequence are those of T5: 2048 x 512 tokens.
- `380m` to `140b` are the GShard MoE of Alpa (Zheng et al. 2022, arXiv 2201.12023, table 7; `140b` and its 128 experts
  stand in `benchmark/alpa/suite_manual_moe.py` of its code alone): inner dimensions of 8 x hidden, experts in every
  second layer. Each token goes to one expert here, to two there (`top=2`), and competes with those of its sequence,
  there with those of two.
"""

from typing import ClassVar

from ssdsl.model.zoo.family import ModelFamily, ModelSize


class MoeGpt(ModelSize):
    """The numbers of such a GPT; every `every`-th layer has experts, each of inner dimension `ffn`.

    `balance` and `z` are the factors of the router's losses. Tokens go to `top` experts, and to all `shared` ones.
    """

    NET: ClassVar = "moe_gpt:MoeGptNet"
    SUMMARY: ClassVar = "{layers} layers, hidden {hidden}, {experts} experts, seq {seq}"
    layers: int
    hidden: int
    heads: int
    ffn: int
    experts: int
    seq: int
    batch: int
    vocab: int
    every: int = 2
    capacity_percent: int = 125
    top: int = 1
    shared: int = 0
    group: str = "sequence"
    balance: float = 0.01
    z: float = 0.001
    dtype: str = "fp32"

    def problem(self) -> str:
        if self.every > self.layers:
            return f"every = {self.every} is more than layers = {self.layers}, so no layer has experts"
        if self.top > self.experts:
            return f"top = {self.top} is more than experts = {self.experts}"
        return super().problem()

    @property
    def slots(self) -> int:
        """The number of tokens of a group that an expert takes, rounded up.

        >>> MoeGpt(2, 8, 1, 8, experts=4, seq=64, batch=2, vocab=8).slots  # 1.25 x 64 / 4
        20
        """
        tokens = self.seq if self.group == "sequence" else self.batch * self.seq
        return -(-tokens * self.top * self.capacity_percent // (100 * self.experts))

    def has_experts(self, layer: int) -> bool:
        return layer % self.every == self.every - 1


ALPA = {  # layers, hidden, experts
    "380m": (8, 768, 8),
    "690m": (8, 768, 16),
    "1.3b": (16, 768, 16),
    "2.4b": (16, 1024, 16),
    "10b": (16, 1536, 32),
    "27b": (16, 2048, 48),
    "70b": (32, 2048, 64),
    "140b": (32, 2048, 128),
}
SIZES = {
    "tiny": MoeGpt(layers=2, hidden=32, heads=4, ffn=64, experts=4, seq=16, batch=8, vocab=128),
    "base": MoeGpt(layers=24, hidden=768, heads=12, ffn=3072, experts=128, seq=512, batch=2048, vocab=32128),
    **{
        name: MoeGpt(layers, hidden, 16, ffn=8 * hidden, experts=experts, seq=1024, batch=1024, vocab=32000)
        for name, (layers, hidden, experts) in ALPA.items()
    },
}
FAMILY = ModelFamily("GPT with a mixture of experts with a capacity, next-token loss", SIZES)
