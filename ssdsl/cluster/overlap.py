"""What a training stack does at the same time."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Overlap:
    """Devices compute while they send (`sends`) and while gradients of replicas are reduced (`gradients`), as programs
    of `ssdsl run` do. What the backward of a product exchanges for its input travels while the gradient of its weight
    is computed, and what it gathers again while that of its input is (`products`): Megatron-LM does so since 2022.
    """

    sends: bool = True
    gradients: bool = True
    products: bool = False
