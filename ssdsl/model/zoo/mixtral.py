"""Mixtral: `MixtralForCausalLM` of transformers with random weights, predicting the next token.

8x7b has the numbers of Jiang et al. 2024 (arXiv 2401.04088), table 1; sequence and batch are ours, 4 million tokens as
for Llama 2. Every layer sends each token to `top` of its experts, without a capacity. The load-balancing loss is part
of the loss, 0.02 times, as in the config that Mistral released.

The router takes the largest probabilities by `topk`. Which of exactly equal ones it takes, torch leaves open; it takes
the same ones of equal rows on one kind of device, and the experts' results are summed, so the order does not matter.
"""

from dataclasses import dataclass
from typing import Any

from ssdsl.model.zoo.decoder import Decoder

ABOUT = "Mixtral, a mixture of experts without a capacity, next-token loss"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixtral(Decoder):
    """The numbers of a Mixtral; `ffn` is the inner dimension of an expert."""

    experts: int
    top: int
    theta: int = 1_000_000
    balance: float = 0.02

    def problem(self) -> str:
        if self.top > self.experts:
            return f"top = {self.top} is more than experts = {self.experts}"
        return Decoder.problem(self)

    def feed_forward(self) -> int:
        """The parameters of one layer's: experts of three matrices, and their router."""
        return (3 * self.ffn + 1) * self.hidden * self.experts

    def describe(self) -> str:
        experts = f"{self.top} of {self.experts} experts"
        return f"{self.layers} layers, hidden {self.hidden}, {experts}, seq {self.seq}"

    def module(self, library: Any) -> Any:
        return library.MixtralForCausalLM(
            library.MixtralConfig(
                **self.settings(),
                num_local_experts=self.experts,
                num_experts_per_tok=self.top,
                output_router_logits=self.balance > 0,  # which adds the load-balancing loss
                router_aux_loss_coef=self.balance,
            )
        )


SIZES = {
    "tiny": Mixtral(layers=2, hidden=32, heads=4, keys=2, ffn=64, experts=4, top=2, seq=16, batch=8, vocab=128),
    "8x7b": Mixtral(
        layers=32, hidden=4096, heads=32, keys=8, ffn=14336, experts=8, top=2, seq=4096, batch=1024, vocab=32000
    ),
}
LAPTOP = ("tiny",)
