"""torchrun as `launch` starts it: it ends when its parent does, and prints which ranks failed.

Run as `python -m ssdsl.run.torchrun_agent [torchrun's arguments]`; exit status 1 if a rank failed. It prints to a pipe,
which works even if the disk is full.
"""

import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from multiprocessing import forkserver
from typing import Any

from ssdsl.run.processes import end_with_parent

SHUTDOWN_S = "2"
PRELOADED = ["torch", "torch.distributed", "torch._dynamo"]  # the last by every optimizer of torch.optim


def main(arguments: list[str]) -> int:
    if "forkserver" in arguments:  # it loads torch while this process does
        multiprocessing.set_forkserver_preload(PRELOADED)
        forkserver.ensure_running()
    from torch import multiprocessing as processes
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import get_args_parser, run

    codes: dict[int, int] = {}
    start = noting(processes.start_processes, codes)  # type: ignore[attr-defined]
    processes.start_processes = start  # type: ignore[attr-defined]
    parser = get_args_parser()
    if "--shutdown-timeout" in parser.format_help():  # torch 2.13; older versions wait 30 s, which `launch` cuts short
        arguments[:0] = ["--shutdown-timeout", SHUTDOWN_S]
    try:
        run(parser.parse_args(arguments))  # type: ignore[no-untyped-call]
    except ChildFailedError as error:
        first = next(rank - f.local_rank for rank, f in error.failures.items())  # of this node
        exits = codes | {f.local_rank: f.exitcode for f in error.failures.values()}
        failures = [{"rank": first + n, "local_rank": n, "exitcode": exits[n]} for n in sorted(exits)]
        print(json.dumps(failures), flush=True)
        return 1
    return 0


def noting(start: Callable[..., Any], codes: dict[int, int]) -> Callable[..., Any]:
    """`torch.multiprocessing.start_processes`, whose `join` first notes in `codes` how processes have failed.

    torchrun reports one failed process. If another one fails because of it before torchrun looks, it may be that one.
    """

    def started(*args: Any, **options: Any) -> Any:
        codes.clear()
        context = start(*args, **options)
        join = context.join

        def noted(*args: Any, **options: Any) -> Any:
            codes.update({n: code for n, p in enumerate(context.processes) if (code := p.exitcode)})
            return join(*args, **options)

        context.join = noted
        return context

    return started


if __name__ == "__main__":
    end_with_parent(signal.SIGTERM)  # torchrun then ends its ranks
    if os.getppid() != int(os.environ.pop("SSDSL_PARENT")):  # it ended before
        sys.exit(1)
    sys.exit(main(sys.argv[1:]))
