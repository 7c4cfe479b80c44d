"""An interpreter for tests that start processes: a command like `python`, whose processes have torch loaded already.

For tests of the start itself, or of what is imported, there is `sys.executable`.
"""

import os
import shlex
import subprocess
import sys
import time
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).parent


class Preloaded:
    """Has the command, and the process that loads torch for all, which starts when the command is first asked for.

    Stands in place of `sys` in a module that starts processes.
    """

    platform = sys.platform

    def __init__(self) -> None:
        self.opened = ExitStack()

    @cached_property
    def executable(self) -> str:
        """The path of the command, until `close`; of `python` itself where no process can wait for another's end."""
        if not hasattr(os, "pidfd_open"):  # it is Linux's
            return sys.executable
        folder = self.opened.enter_context(TemporaryDirectory())
        command, address = Path(folder, "python"), Path(folder, "socket")
        words = [sys.executable, "-IS", str(HERE / "client.py"), str(address)]
        command.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        command.chmod(0o755)
        serve = [sys.executable, str(HERE / "server.py"), str(address)]
        server = self.opened.enter_context(subprocess.Popen(serve, stdin=subprocess.PIPE))  # its exit closes stdin
        while not address.exists():
            assert server.poll() is None, "the server has ended"
            time.sleep(0.01)
        return str(command)

    def close(self) -> None:
        self.opened.close()
