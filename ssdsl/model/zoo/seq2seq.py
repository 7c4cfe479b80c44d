"""What the encoder-decoders share: mBART and T5, whose one embedding is that of source, target and scores.

A batch has random sources and targets of one length. What the decoder reads are the targets, one position later.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ssdsl.model.zoo.build import BATCHES, construct
from ssdsl.model.zoo.options import DTYPES, choice

if TYPE_CHECKING:
    import torch

    from ssdsl.model.source import Model
    from ssdsl.runtime.bits import Generator

AXES: dict[str, tuple[str, ...]] = {
    "input_ids": ("batch", "seq"),
    "decoder_input_ids": ("batch", "target"),
    "labels": ("batch", "target"),
}
START = 0  # what the decoder reads first


@dataclass(frozen=True, slots=True, kw_only=True)
class Seq2Seq:
    """The numbers of an encoder-decoder: `layers` of each; `batch` counts pairs of a source and a target."""

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

    def describe(self) -> str:
        layers = f"{self.layers} + {self.layers} layers"
        return f"{layers}, hidden {self.hidden}, {self.heads} heads, seq {self.seq}, vocab {self.vocab}"

    def build(self, name: str, seed: int, generator: "Generator", meta: bool) -> "Model":
        from ssdsl.model.source import Model

        module, recipes = construct(name, self.module, self.dtype, seed, generator, meta)
        return Model(name, module, self._batches(seed), AXES, generator, recipes)

    def module(self, library: Any) -> Any:
        """The module, from the transformers library."""
        raise NotImplementedError

    def _batches(self, seed: int) -> "tuple[dict[str, torch.Tensor], ...]":
        import torch

        def batch(draws: torch.Generator) -> dict[str, torch.Tensor]:
            source, target = (torch.randint(self.vocab, (self.batch, self.seq), generator=draws) for _ in "st")
            read = torch.cat([torch.full((self.batch, 1), START), target[:, :-1]], dim=1)
            return {"input_ids": source, "decoder_input_ids": read, "labels": target}

        return tuple(batch(torch.Generator().manual_seed(seed + i)) for i in range(BATCHES))
