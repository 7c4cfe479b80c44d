"""torchrun as `launch` starts it: it ends when its parent does, and prints which ranks failed.

Run as `python -m ssdsl.run.torchrun_agent [torchrun's arguments]`; exit status 1 if a rank failed. It prints to a pipe,
which works even if the disk is full.
"""

import json
import multiprocessing
import os
import signal
import sys
from multiprocessing import forkserver

from ssdsl.run.processes import end_with_parent

SHUTDOWN_S = "2"
PRELOADED = ["torch", "torch.distributed", "torch._dynamo"]  # the last by every optimizer of torch.optim


def main(arguments: list[str]) -> int:
    if "forkserver" in arguments:  # it loads torch while this process does
        multiprocessing.set_forkserver_preload(PRELOADED)
        forkserver.ensure_running()
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import get_args_parser, run

    parser = get_args_parser()
    if "--shutdown-timeout" in parser.format_help():  # torch 2.13; older versions wait 30 s, which `launch` cuts short
        arguments[:0] = ["--shutdown-timeout", SHUTDOWN_S]
    try:
        run(parser.parse_args(arguments))  # type: ignore[no-untyped-call]
    except ChildFailedError as error:
        failures = [
            {"rank": rank, "local_rank": f.local_rank, "exitcode": f.exitcode}
            for rank, f in sorted(error.failures.items())
        ]
        print(json.dumps(failures), flush=True)
        return 1
    return 0


if __name__ == "__main__":
    end_with_parent(signal.SIGTERM)  # torchrun then ends its ranks
    if os.getppid() != int(os.environ.pop("SSDSL_PARENT")):  # it ended before
        sys.exit(1)
    sys.exit(main(sys.argv[1:]))
