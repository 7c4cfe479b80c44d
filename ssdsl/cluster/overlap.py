"""The things that a training stack does at the same time."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Overlap:
    """Devices compute while they send (`sends`), and while gradients of replicas are reduced (`gradients`), as programs
    of `ssdsl run` do. With `products`, the backward of a matrix product also overlaps: the exchange for the gradient of
    its input runs beside the computation of the weight's gradient, and gathers that are repeated run beside the
    computation of the input's gradient, as in Megatron-LM since 2022."""

    sends: bool = True
    gradients: bool = True
    products: bool = False
