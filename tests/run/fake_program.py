"""A program folder as the code generator writes it, but without torch: each rank writes what the contract asks for."""

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

parser = argparse.ArgumentParser()
for name in ("--steps", "--seed", "--device", "--optimizer", "--lr", "--out", "--timeout"):
    parser.add_argument(name, required=True)
parser.add_argument("--dump", action="store_true")
options = parser.parse_args()

rank, out, steps = int(os.environ["RANK"]), Path(options.out), int(options.steps)
behaviour = (Path(__file__).parent / "behaviour").read_text()
(out / f"pid{rank}").write_text(str(os.getpid()))

if behaviour in ("stopped", "loops", "full"):
    from runtime.health.heartbeat import Heartbeat  # a part of the runtime that needs no torch

    heartbeat = Heartbeat(out, rank)
    heartbeat.report("loading its weights", role=f"stage{rank}")
    heartbeat.follow(lambda: (2, "forward of block 3"))
    time.sleep(1)  # until it is written
    if behaviour == "full" and rank == 1:
        heartbeat.failed(
            "rank 1, role stage1, step 2, forward of block 3:\nOSError: [Errno 28] No space left on device"
        )
        os._exit(1)
    if behaviour == "stopped" and rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    if behaviour == "loops" and rank == 1:
        while True:
            time.sleep(0.01)
    time.sleep(600)  # in place of dist.barrier(): the line says that it waits
if behaviour == "raises" and rank == 1:
    (out / f"rank{rank}.err").write_text("in task fwd of block 3\nValueError: a number went missing\n")
    sys.exit(1)
if behaviour == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if rank == 1:
        (out / f"rank{rank}.err").write_text("ValueError: the others do not hear of it\n")
        sys.exit(1)
if behaviour == "killed" and rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
if behaviour == "exits" and rank == 1:
    print("no such device", file=sys.stderr)
    sys.exit(7)
if behaviour != "good":
    time.sleep(600)

for step in range(steps):
    if rank == 0:
        with (out / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": step, "loss": 1.0 / (step + 1), "time_s": 0.01}) + "\n")
losses = [1.0 / (step + 1) for step in range(steps)] if rank == 0 else []
comm = {"all_reduce": {"calls": 2 * steps, "bytes": 100 * steps}}
result = {"rank": rank, "role": f"stage {rank}", "losses": losses, "step_s": [0.01] * steps, "peak_bytes": 1 << 20}
(out / f"rank{rank}.json").write_text(json.dumps({**result, "comm": comm}))
