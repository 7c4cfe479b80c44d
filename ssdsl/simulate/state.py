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
        """The bytes that the end of a step reads and writes of one weight: the gradient is read, the state and the
        weight are read and written. With a master copy the gradient is first converted to its type, that of a scaled
        loss (float16) divided and checked, and at last the copy goes back into the weight."""
        if not self._has_master(dtype):
            return self.gradient_bytes(dtype) + 2 * self.optimizer_bytes(dtype) + 2 * _size(dtype)
        converted = 0 if self.fp32_grads else _size(dtype) + FP32
        unscaled = 3 * FP32 if dtype == "float16" else 0
        return converted + unscaled + FP32 + 2 * self.optimizer_bytes(dtype) + FP32 + _size(dtype)

    def accumulation_traffic(self, dtype: str, *, fuses: bool) -> int:
        """The bytes that adding a further gradient reads and writes; the kernel of a product adds what it reads to what
        it would write."""
        return self.gradient_bytes(dtype) + (0 if fuses else _size(dtype) + self.gradient_bytes(dtype))

    def _has_master(self, dtype: str) -> bool:
        return self.masters and _is_half(dtype)


MIXED = State()


def _size(dtype: str) -> int:
    return ITEMSIZE.get(dtype, FP32)


def _is_half(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat")) and _size(dtype) < FP32
