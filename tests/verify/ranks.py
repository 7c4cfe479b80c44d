"""Starts the ranks of programs by fork, so that torch is loaded once and not by every rank of every test.

Reads a line of JSON for each program, its command line and the number of its processes, and answers with a line when
all of them have ended: 0 if all went well.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # these two as ssdsl.run.launch sets them
os.environ["GLOO_SOCKET_IFNAME"] = "lo"

import importlib
import json
import runpy
import signal
import socket
import sys
import time
from pathlib import Path

LIMIT_S = 120
GRACE_S = 1.0  # for the other ranks to write their errors after one has failed


def main() -> None:
    importlib.import_module("torch._dynamo")  # all of torch, and what torch.optim loads on first use
    for line in sys.stdin:
        request = json.loads(line)
        print(run(request["arguments"], request["processes"]), flush=True)


def run(arguments: list[str], processes: int) -> int:
    """The first exit status that is not 0, or 0."""
    port = free_port()
    ranks = {fork(arguments, rank, processes, port) for rank in range(processes)}
    end, first = time.monotonic() + LIMIT_S, 0
    while ranks:
        pid, status = os.waitpid(-1, os.WNOHANG)
        ranks.discard(pid)
        if pid and status and not first:
            first, end = os.waitstatus_to_exitcode(status), time.monotonic() + GRACE_S
        if time.monotonic() > end:
            for rank in ranks:
                os.kill(rank, signal.SIGKILL)
            first = first or -signal.SIGKILL
            end = time.monotonic() + LIMIT_S
        if not pid:
            time.sleep(0.01)
    return first


def fork(arguments: list[str], rank: int, processes: int, port: int) -> int:
    """A process that runs the program as torchrun would start it."""
    if pid := os.fork():
        return pid
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "MASTER_PORT": port}
    os.environ.update({"MASTER_ADDR": "127.0.0.1", **{name: str(number) for name, number in numbers.items()}})
    os.dup2(2, 1)  # what a program prints is no answer
    sys.argv = arguments
    sys.path.insert(0, str(Path(arguments[0]).parent))
    try:
        runpy.run_path(arguments[0], run_name="__main__")
    finally:
        os._exit(1 if sys.exc_info()[0] else 0)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


if __name__ == "__main__":
    main()
