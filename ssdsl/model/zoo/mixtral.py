"""Mixtral: `MixtralForCausalLM` of transformers with random weights, predicting the next token.

8x7b has the numbers of Jiang et al. 2024 (arXiv 2401.04088), table 1; sequence and batch are ours, 4 million tokens as
for Llama 2. Every layer sends each token to `top` of its experts, without a capacity. The load-balancing loss is part
of the loss, 0.02 times, as in the config that Mistral released.

The router takes the largest probabilities by `topk`. Which of exactly equal ones it takes, torch leaves open; it takes
the same ones of equal rows on one kind of device, and the experts' results are summed, so the order does not matter.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ssdsl.model.zoo.build import TOKENS, construct, token_batches
from ssdsl.model.zoo.llama import attention_parameters, head_problem
from ssdsl.model.zoo.options import DTYPES, choice

if TYPE_CHECKING:
    from ssdsl.model.source import Model
    from ssdsl.runtime.bits import Generator

ABOUT = "Mixtral, a mixture of experts without a capacity, next-token loss"


@dataclass(frozen=True, slots=True)
class Mixtral:
    """The numbers of a Mixtral; `keys` are the heads of keys and values, `ffn` is the inner dimension of an expert."""

    layers: int
    hidden: int
    heads: int
    keys: int
    ffn: int
    experts: int
    top: int
    seq: int
    batch: int
    vocab: int
    theta: int = 1_000_000
    balance: float = 0.02
    dtype: str = choice(DTYPES, "fp32")
    attention: str = choice(("sdpa", "eager"), "sdpa")

    def problem(self) -> str:
        if self.top > self.experts:
            return f"top = {self.top} is more than experts = {self.experts}"
        return head_problem(self.hidden, self.heads, self.keys)

    def parameters(self) -> int:
        """Attention, experts of three matrices, their router and two norms a layer; both embeddings, the last norm."""
        attention = attention_parameters(self.hidden, self.heads, self.keys)
        experts = (3 * self.ffn + 1) * self.hidden * self.experts
        return self.layers * (attention + experts + 2 * self.hidden) + (2 * self.vocab + 1) * self.hidden

    def describe(self) -> str:
        experts = f"{self.top} of {self.experts} experts"
        return f"{self.layers} layers, hidden {self.hidden}, {experts}, seq {self.seq}"

    def build(self, name: str, seed: int, generator: "Generator", meta: bool) -> "Model":
        from ssdsl.model.source import Model

        module, recipes = construct(name, self._module, self.dtype, seed, generator, meta)
        return Model(name, module, token_batches(self.vocab, self.batch, self.seq, seed), TOKENS, generator, recipes)

    def _module(self, library: Any) -> Any:
        return library.MixtralForCausalLM(self._config(library))

    def _config(self, library: Any) -> object:
        return library.MixtralConfig(
            vocab_size=self.vocab,
            hidden_size=self.hidden,
            intermediate_size=self.ffn,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.keys,
            num_local_experts=self.experts,
            num_experts_per_tok=self.top,
            output_router_logits=self.balance > 0,  # which adds the load-balancing loss
            router_aux_loss_coef=self.balance,
            max_position_embeddings=self.seq,
            rope_parameters={"rope_type": "default", "rope_theta": float(self.theta)},
            attn_implementation=self.attention,
            use_cache=False,
            tie_word_embeddings=False,
        )


SIZES = {
    "tiny": Mixtral(layers=2, hidden=32, heads=4, keys=2, ffn=64, experts=4, top=2, seq=16, batch=8, vocab=128),
    "8x7b": Mixtral(
        layers=32, hidden=4096, heads=32, keys=8, ffn=14336, experts=8, top=2, seq=4096, batch=1024, vocab=32000
    ),
}
LAPTOP = ("tiny",)
