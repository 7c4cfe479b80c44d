"""Runs the commands of one checkout: `python worker.py CHECKOUT` reads a JSON line for each and answers with one.

Of the checkout it imports nothing but the function behind `ssdsl`, so that it fits an older one and a newer one.
"""

import contextlib
import io
import json
import os
import sys

sys.path[0] = sys.argv[1]  # in place of this folder, and before any other checkout

from ssdsl.cli.main import main  # noqa: E402

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what a library prints past `sys.stdout` is no answer


def run(arguments: list[str]) -> dict[str, int | str]:
    """The exit status of a command, and what it prints."""
    out, err, status = io.StringIO(), io.StringIO(), 0
    sys.argv = ["ssdsl", *arguments]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
    return {"status": status, "out": out.getvalue(), "err": err.getvalue(), "peak_mb": peak_mb()}


def peak_mb() -> int:
    """The peak memory of this program, or 0 where the system does not tell: `ru_maxrss` includes that of the process
    which started it."""
    with contextlib.suppress(OSError), open("/proc/self/status") as status:
        return next((int(line.split()[1]) // 1000 for line in status if line.startswith("VmHWM:")), 0)
    return 0


for line in sys.stdin:
    answers.write(json.dumps(run(json.loads(line))) + "\n")
    answers.flush()
