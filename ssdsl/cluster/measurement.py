"""The result of `ssdsl clusters measure`, and the cluster's file that it is written to."""

import json
from dataclasses import dataclass
from datetime import date

GIB, GB, TERA, MICRO = 2**30, 1e9, 1e12, 1e-6


@dataclass(frozen=True, slots=True)
class Measurement:
    """Rates of one process with one thread while the other cores compute too; of gloo, between two processes.

    `launch_s` is the time of an operator on eight numbers. A hop is one of the messages that a rank waits for: a ring
    of two has two. The all_reduce's bandwidth is bus bandwidth, as nccl-tests defines it.
    """

    processor: str
    cores: int
    memory_bytes: int
    float32_flops: float
    bfloat16_flops: float
    memory_bandwidth: float
    launch_s: float
    send_latency_s: float
    send_bandwidth: float
    hop_latency_s: float
    all_reduce_bandwidth: float
    torch_version: str
    day: date

    def about(self) -> str:
        return f"processes on the {self.cores} cores of one machine, over gloo"

    def toml(self) -> str:
        """The text of the file from which `load_cluster` reads this cluster."""
        source = json.dumps(f"ssdsl clusters measure, {self.day}, torch {self.torch_version}", ensure_ascii=False)
        return FILE.format(
            about=json.dumps(self.about()),
            processor=json.dumps(self.processor, ensure_ascii=False),
            source=source,
            cores=self.cores,
            float32=_digits(self.float32_flops / TERA),
            bfloat16=_digits(self.bfloat16_flops / TERA),
            memory=_digits(self.memory_bytes / self.cores / GIB),
            stream=_digits(self.memory_bandwidth / GB),
            launch=_digits(self.launch_s / MICRO),
            reduce=_digits(self.all_reduce_bandwidth / GB),
            hop=_digits(self.hop_latency_s / MICRO),
            send=_digits(self.send_bandwidth / GB),
            ping=_digits(self.send_latency_s / MICRO),
        )


def _digits(value: float) -> str:
    """Three digits, without an exponent."""
    return f"{float(f'{value:.3g}'):f}".rstrip("0").rstrip(".")


FILE = """\
# What one process with one thread reaches while all cores compute. Ranks are processes; more of them than cores share.
about = {about}
shares_cores = true
fuse = false

[devices.core]
name = {processor}
peak_tflops = {{ float32 = {float32}, bfloat16 = {bfloat16} }}
memory_gib = {memory}  # the machine's, by core
memory_bandwidth_gb_s = {stream}  # read and written, adding tensors that no cache holds
compute_efficiency = 1  # the peak above is measured
memory_efficiency = 1
launch_us = {launch}  # an operator on eight numbers, forward or backward
source = {source}

[[nodes]]
device = "core"
count = 1
devices = {cores}

[[nodes.levels]]
name = "loopback"
bandwidth_gb_s = {reduce}  # all_reduce of 8 MiB between two processes
latency_us = {hop}
send_bandwidth_gb_s = {send}  # send and receive of 8 MiB
send_latency_us = {ping}
source = {source}
"""
