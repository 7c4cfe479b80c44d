"""Measures this machine: starts the processes of `probe.py`, and waits until all have ended."""

import json
import os
import platform
import re
import socket
import subprocess
import sys
import tempfile
import time
from datetime import date
from importlib.metadata import version
from pathlib import Path
from statistics import mean
from typing import IO

from ssdsl.cluster.errors import ClusterFileUnwritable, MeasureFailed
from ssdsl.lang.save import put_whole, reason_of
from ssdsl.record import Record
from ssdsl.text.diagnostic import PlanError

MOST_PROCESSES = 8  # as many as plans for a laptop have; on a server some cores stay idle
LIMIT_S = 120.0
POLL_S = 0.05
LARGE_BYTES = 8 << 20  # of probe.py's large messages
GIB, GB, TERA, MICRO = 2**30, 1e9, 1e12, 1e-6


class Measurement(Record):
    """Rates of one process with one thread while the other cores compute too, and of gloo between two processes.

    Times are in seconds, bandwidths in bytes per second, `..._flops` in operations per second. `launch_s` is the time
    of an operator on eight numbers. A hop is one of the messages of a collective that a rank waits for, one after
    another: an all_reduce of two ranks has two. The all_reduce's bandwidth is bus bandwidth, as nccl-tests defines it.
    `contention` is the share by which a product of matrices takes longer beside all_reduces.
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
    contention: float
    torch_version: str
    day: date

    def about(self) -> str:
        """The description of the cluster in its file."""
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
            contention=_digits(self.contention),
            reduce=_digits(self.all_reduce_bandwidth / GB),
            hop=_digits(self.hop_latency_s / MICRO),
            send=_digits(self.send_bandwidth / GB),
            ping=_digits(self.send_latency_s / MICRO),
        )


def _digits(value: float) -> str:
    """A number as text: three digits, without an exponent.

    >>> _digits(1234567.0), _digits(0.0123456)
    ('1230000', '0.0123')
    """
    return f"{float(f'{value:.3g}'):f}".rstrip("0").rstrip(".")


FILE = """\
# What one process with one thread reaches while all cores compute. Ranks are processes; more of them than cores share.
about = {about}
shares_cores = true

[devices.core]
name = {processor}
peak_tflops = {{ float32 = {float32}, bfloat16 = {bfloat16} }}
memory_gib = {memory}  # the machine's, by core
memory_bandwidth_gb_s = {stream}  # read and written, adding tensors that no cache holds
compute_efficiency = 1  # the peak above is measured
memory_efficiency = 1
launch_us = {launch}  # an operator on eight numbers, forward or backward
contention = {contention}  # a product takes longer by this share beside all_reduces
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


def measure() -> Measurement:
    """Measures the rates of this machine's cores, and of gloo between processes, in about 20 seconds. Raises
    PlanError."""
    cores = usable_cores()
    computing = min(cores, MOST_PROCESSES)
    found = _probe(max(2, computing), computing)

    def rate(name: str) -> float:
        return mean(f[name] for f in found if name in f)

    small, large = rate("small_ping_s"), rate("large_ping_s")
    small_reduce, large_reduce = rate("small_all_reduce_s"), rate("large_all_reduce_s")
    return Measurement(
        processor=processor(),
        cores=cores,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        float32_flops=rate("float32_flops"),
        bfloat16_flops=rate("bfloat16_flops"),
        memory_bandwidth=rate("memory_bandwidth"),
        launch_s=rate("launch_s"),
        send_latency_s=small,
        send_bandwidth=_bandwidth(small, large),
        hop_latency_s=small_reduce / 2,
        all_reduce_bandwidth=_bandwidth(small_reduce, large_reduce),
        contention=rate("contention"),
        torch_version=version("torch"),
        day=date.today(),
    )


def save(measurement: Measurement, path: Path) -> None:
    """Writes the cluster's file, and makes its folder. Raises PlanError if that is impossible."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        put_whole(path, measurement.toml())
    except (OSError, ValueError) as error:
        raise PlanError(ClusterFileUnwritable(None, str(path), reason_of(error))) from error


def _bandwidth(small_s: float, large_s: float) -> float:
    """The bandwidth in bytes per second, from the times of a message of one number and of a large one.

    Between two ranks an all_reduce sends the data once in each direction, so its bus bandwidth is the same formula.
    """
    # on a busy machine the small message may seem the slower one: the difference is at least a hundredth of the time
    return LARGE_BYTES / max(large_s - small_s, large_s / 100)


def _probe(world: int, computing: int) -> list[dict[str, float]]:
    """The measurements of each rank, by the names in `probe.py`."""
    with tempfile.TemporaryDirectory(prefix="ssdsl-measure-") as name:
        folder = Path(name)
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(world):
                with (folder / f"rank{rank}.log").open("wb") as log:
                    processes.append(_start(rank, world, computing, folder, log))
            _wait(processes, folder)
        finally:
            for process in processes:
                process.kill()
            for process in processes:
                process.wait()
        return [json.loads((folder / f"rank{rank}.json").read_text("utf-8")) for rank in range(world)]


def _start(rank: int, world: int, computing: int, folder: Path, log: IO[bytes]) -> "subprocess.Popen[bytes]":
    words = [str(rank), str(world), str(computing), str(folder)]
    command = [sys.executable, "-m", "ssdsl.cluster.probe", *words]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=_environment())


def _environment() -> dict[str, str]:
    """The environment of a process: one thread, gloo on the loopback interface, and this package on PYTHONPATH."""
    found = {**os.environ, "OMP_NUM_THREADS": "1", "SSDSL_PARENT": str(os.getpid())}
    package = str(Path(__file__).resolve().parents[2])
    found["PYTHONPATH"] = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
    if "lo" in {name for _, name in socket.if_nameindex()}:
        found.setdefault("GLOO_SOCKET_IFNAME", "lo")
    return found


def _wait(processes: "list[subprocess.Popen[bytes]]", folder: Path) -> None:
    """Returns when all processes have ended. Raises PlanError if one fails, or takes too long."""
    end = time.monotonic() + LIMIT_S
    while any(process.poll() is None for process in processes) and time.monotonic() < end:
        if any(process.poll() for process in processes):
            break
        time.sleep(POLL_S)
    for rank, process in enumerate(processes):
        if process.poll():
            ending = f"ended with status {process.returncode}"
            change = "run it again; if torch cannot be imported or gloo finds no interface, the note says so"
            raise PlanError(MeasureFailed(None, rank, ending, _log(folder, rank), change))
    for rank, process in enumerate(processes):
        if process.poll() is None:
            ending = f"did not end within {LIMIT_S:.0f} s"
            raise PlanError(MeasureFailed(None, rank, ending, _log(folder, rank), "try when the machine is less busy"))


def _log(folder: Path, rank: int) -> str:
    text = (folder / f"rank{rank}.log").read_text("utf-8", "replace").strip()
    return "\n".join(text.split("\n")[-8:]) or "it printed nothing"


def usable_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor() -> str:
    """A name for one core of this machine: `core of AMD EPYC 7B13`."""
    try:
        found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text("utf-8"), re.MULTILINE)
    except OSError:
        found = None
    return f"core of {found[1].strip() if found else platform.processor() or platform.machine() or 'a processor'}"
