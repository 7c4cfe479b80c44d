"""A device: its rate of computing in each dtype, its memory, and what it does at the same time."""

from ssdsl.record import Record

FALLBACK = {  # dtypes that stand in for one without units of its own: the first that the device has, else float32
    "float8_e4m3fn": ("bfloat16", "float16"),
    "float8_e5m2": ("bfloat16", "float16"),
}
DTYPES = ("float64", "float32", "tfloat32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
CONTENTION = 0.19  # of GPUs: arXiv 2507.03114 (2025), the mean of GPT and LLaMA on A100, H100, MI210 and MI250


class Device(Record):
    """A GPU, or one core of a processor.

    `peak` has FLOP/s of dense matmuls by torch's name of the dtype. float32 is always there, and means without TF32,
    which is `tfloat32`. `compute_efficiency` and `memory_efficiency` are the fractions of the peaks that large matmuls
    and large elementwise operators reach. `memory_bandwidth` is in bytes per second, read and written together.
    `launch_s` is the least time of an operator. A device of several `processors` computes a matrix product in tiles;
    each tile takes `tile_s` beside its arithmetic (`ssdsl/simulate/price/matmul.py`). While a device communicates, it
    takes longer to compute, by the share `contention`.
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
    contention: float = 0.0

    def peak_flops(self, dtype: str) -> float:
        """The peak FLOP/s in a dtype (`bfloat16`, or `torch.bfloat16`); without units for it, those of a wider
        dtype."""
        name = dtype.removeprefix("torch.")
        peaks = dict(self.peak)
        return next(peaks[d] for d in (name, *FALLBACK.get(name, ()), "float32") if d in peaks)

    def achievable_flops(self, dtype: str) -> float:
        """The FLOP/s that large matmuls reach."""
        return self.peak_flops(dtype) * self.compute_efficiency

    def attention_flops(self, dtype: str) -> float:
        """The FLOP/s that fused attention reaches."""
        return self.peak_flops(dtype) * (self.attention_efficiency or self.compute_efficiency)

    def achievable_bandwidth(self) -> float:
        """The bytes per second that large elementwise operators read and write."""
        return self.memory_bandwidth * self.memory_efficiency


class Overlap(Record):
    """The communication that devices overlap with computation: sends (`sends`); and the reduction of replicas'
    gradients, and other collectives that programs start before they await them (`gradients`), as programs of
    `ssdsl run` do. With `products`, the backward of a matrix product also overlaps: the exchange for its input's
    gradient runs beside the computation of the weight's gradient, and repeated gathers run beside the computation of
    the input's gradient, as in Megatron-LM since 2022."""

    sends: bool = True
    gradients: bool = True
    products: bool = False


class Host(Record):
    """The memory of a node's host, which its devices share. `link_bandwidth` is that of the link between the host and
    each device, in bytes per second and direction; `memory_bandwidth` what all updates on the host read and write
    together."""

    memory_bytes: int
    memory_bandwidth: float
    link_bandwidth: float
    latency: float
