"""One device: how fast it computes in each dtype and how fast it reads its memory."""

from dataclasses import dataclass

FALLBACK = {  # what computes a dtype that the device has no units for: the first of these that it has, then float32
    "float8_e4m3fn": ("bfloat16", "float16"),
    "float8_e5m2": ("bfloat16", "float16"),
}
DTYPES = ("float64", "float32", "tfloat32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU, or one core of a processor.

    `peak` is in FLOP/s of dense matmuls by torch's name of the dtype; float32 is always there and is without TF32,
    which is the row `tfloat32`. `compute_efficiency` and `memory_efficiency` are the fractions of the peaks that large
    matmuls and large elementwise operators reach. `memory_bandwidth` counts bytes read and bytes written, a second.
    `launch_s` is the least time of an operator, however small. A device of several `processors` computes a matrix
    product in tiles, each of which takes `tile_s` beside its arithmetic (`ssdsl/simulate/matmul.py`).
    """

    name: str
    peak: tuple[tuple[str, float], ...]
    memory_bytes: int
    memory_bandwidth: float
    compute_efficiency: float
    memory_efficiency: float
    launch_s: float
    processors: int = 1
    tile_s: float = 0.0
    attention_efficiency: float | None = None

    def peak_flops(self, dtype: str) -> float:
        """FLOP/s in a dtype (`bfloat16`, or `torch.bfloat16`); of one it has no units for, those of a wider one."""
        name = dtype.removeprefix("torch.")
        peaks = dict(self.peak)
        return next(peaks[d] for d in (name, *FALLBACK.get(name, ()), "float32") if d in peaks)

    def achievable_flops(self, dtype: str) -> float:
        """FLOP/s that large matmuls reach."""
        return self.peak_flops(dtype) * self.compute_efficiency

    def attention_flops(self, dtype: str) -> float:
        """FLOP/s that fused attention reaches."""
        return self.peak_flops(dtype) * (self.attention_efficiency or self.compute_efficiency)

    def achievable_bandwidth(self) -> float:
        """Bytes a second that large elementwise operators read and write."""
        return self.memory_bandwidth * self.memory_efficiency
