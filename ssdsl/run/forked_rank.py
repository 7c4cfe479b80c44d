"""The start of a rank that is a copy of a process with torch loaded: runs a program's `main.py` as Python would.

torchrun runs this file in the copy (`--run-path`), with the path of `main.py` and its arguments.
"""

import multiprocessing
import runpy
import signal
import sys
import traceback
from pathlib import Path

from ssdsl.run.processes import end_with_parent


def main() -> None:
    end_with_parent(signal.SIGKILL)  # that is the copied process, which ends with torchrun
    # a copy would start the workers of its loaders as it was started, which have to import what is copied by default
    multiprocessing.set_start_method(multiprocessing.get_all_start_methods()[0], force=True)
    del sys.argv[0]
    sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(write_through=True)  # type: ignore[union-attr]
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except Exception:  # torchrun would keep it to itself
        traceback.print_exc()
        sys.exit(1)


if __name__ == "__main__":
    main()
