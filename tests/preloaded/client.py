"""The command `python` of tests, with torch loaded: asks the server for a process, and ends as it ends.

Takes the arguments of Python: a script, `-m module` or `-c code`, after an optional `-u`. Imports little, so that it
starts in a few milliseconds. The process has this one's environment, folder and streams. Signals that end this one are
passed on; if this one is killed, the server kills the process.
"""

import json
import os
import signal
import socket
import struct
import sys
from typing import Any

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main(path: str, arguments: list[str]) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        request = {"arguments": arguments, "folder": os.getcwd(), "environment": dict(os.environ)}
        text = json.dumps(request).encode()
        socket.send_fds(server, [struct.pack("!I", len(text))], [0, 1, 2])
        server.sendall(text)
        (pid,) = struct.unpack("!i", server.recv(4, socket.MSG_WAITALL))

        def pass_on(number: int, _: Any) -> None:
            os.kill(pid, number)

        for number in PASSED_ON:
            signal.signal(number, pass_on)
        (status,) = struct.unpack("!i", server.recv(4, socket.MSG_WAITALL))
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        if -code in PASSED_ON:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
