"""The things that a training stack does at the same time."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Overlap:
    """What devices overlap with computation: sends (`sends`), and the reduction of replicas' gradients (`gradients`),
    as programs of `ssdsl run` do. With `products`, the backward of a matrix product also overlaps: the exchange for its
    input's gradient runs beside the computation of the weight's gradient, and repeated gathers run beside the
    computation of the input's gradient, as in Megatron-LM since 2022."""

    sends: bool = True
    gradients: bool = True
    products: bool = False
