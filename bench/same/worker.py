"""Runs the commands of one checkout: `python worker.py CHECKOUT` reads a JSON line for each and answers with one.

Of the checkout it imports nothing but the function behind `ssdsl`, so that it fits an older one and a newer one.
"""

import contextlib
import io
import json
import os
import resource
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
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1000
    return {"status": status, "out": out.getvalue(), "err": err.getvalue(), "peak_mb": peak_mb}


for line in sys.stdin:
    answers.write(json.dumps(run(json.loads(line))) + "\n")
    answers.flush()
