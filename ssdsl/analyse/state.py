"""The state that training keeps for each weight: gradients, a master copy, the optimizer's moments.

Weights in 16 bits are trained with a master copy and AdamW's two moments in float32 (Micikevicius et al. 2018; as
`ssdsl run --precision` does): 2 + 2 + 4 + 8 = 16 bytes a parameter. With gradients in float32, as Megatron-LM sums them
for bfloat16, it is 18.
"""

from ssdsl.model.graph import ITEMSIZE
from ssdsl.record import Record

FP32 = 4  # bytes
MOMENTS = 2  # AdamW has two for each weight


class StatePrecision(Record):
    """The precision of training state. `masters`: weights in 16 bits or fewer have a master copy, and moments in
    float32; else all has the weights' dtype. `fp32_grads`: their gradients are added and reduced in float32."""

    masters: bool = True
    fp32_grads: bool = False

    def gradient_bytes(self, dtype: str) -> int:
        """The bytes of the gradient of one element of a weight."""
        return FP32 if self.fp32_grads and _is_half(dtype) else _size(dtype)

    def optimizer_bytes(self, dtype: str) -> int:
        """The bytes of the master copy and moments of one element of a weight."""
        return FP32 + MOMENTS * FP32 if self._has_master(dtype) else MOMENTS * _size(dtype)

    def update_traffic(self, dtype: str) -> int:
        """The bytes that the optimizer's step reads and writes for one element of a weight: it reads the gradient, and
        reads and writes the state and the weight. With a master copy the gradient is first converted to float32, for a
        scaled loss (float16) also divided and checked, and at the end the copy is written back to the weight."""
        if not self._has_master(dtype):
            return self.gradient_bytes(dtype) + 2 * self.optimizer_bytes(dtype) + 2 * _size(dtype)
        converted = 0 if self.fp32_grads else _size(dtype) + FP32
        unscaled = 3 * FP32 if dtype == "float16" else 0
        return converted + unscaled + FP32 + 2 * self.optimizer_bytes(dtype) + FP32 + _size(dtype)

    def accumulation_traffic(self, dtype: str, *, fuses: bool) -> int:
        """The bytes per element that adding a further gradient reads and writes. If kernels are fused, the matrix
        product adds to its output, and only reads the old gradient in addition."""
        return self.gradient_bytes(dtype) + (0 if fuses else _size(dtype) + self.gradient_bytes(dtype))

    def _has_master(self, dtype: str) -> bool:
        return self.masters and _is_half(dtype)


MIXED = StatePrecision()


def _size(dtype: str) -> int:
    return ITEMSIZE.get(dtype, FP32)


def _is_half(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat")) and _size(dtype) < FP32
