"""What training keeps of each weight beside it: gradients, a master copy, the optimizer's moments.

Weights in 16 bits are trained with a master copy and AdamW's two moments in float32 (Micikevicius et al. 2018; as
`ssdsl run --precision` does): 2 + 2 + 4 + 8 = 16 bytes a parameter. Gradients that are summed up in float32, as
Megatron-LM does with bfloat16, make it 18.
"""

from dataclasses import dataclass

from ssdsl.model.graph import ITEMSIZE

FP32 = 4  # bytes
MOMENTS = 2  # of AdamW


@dataclass(frozen=True, slots=True)
class State:
    """`masters`: weights in 16 bits or fewer have a master copy, and their moments are in float32; else all is of the
    weights' type. `fp32_grads`: their gradients are added up and reduced in float32."""

    masters: bool = True
    fp32_grads: bool = False

    def gradient_bytes(self, dtype: str) -> int:
        """Of one weight."""
        return FP32 if self.fp32_grads and _is_half(dtype) else _size(dtype)

    def optimizer_bytes(self, dtype: str) -> int:
        """Of one weight's master copy and moments."""
        return FP32 + MOMENTS * FP32 if self._has_master(dtype) else MOMENTS * _size(dtype)

    def update_traffic(self, dtype: str) -> int:
        """The bytes that a step of the optimizer reads and writes of one weight: the gradient is read, the state and
        the weight are read and written; of a weight with a master copy, that is read in its place."""
        read = 0 if self._has_master(dtype) else _size(dtype)
        return self.gradient_bytes(dtype) + 2 * self.optimizer_bytes(dtype) + read + _size(dtype)

    def accumulation_traffic(self, dtype: str) -> int:
        """The bytes that adding a further gradient reads and writes."""
        return _size(dtype) + 2 * self.gradient_bytes(dtype)

    def _has_master(self, dtype: str) -> bool:
        return self.masters and _is_half(dtype)


MIXED = State()


def _size(dtype: str) -> int:
    return ITEMSIZE.get(dtype, FP32)


def _is_half(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat")) and _size(dtype) < FP32
