"""Starts processes with torch loaded, by fork: each import of torch takes more than a second of a processor.

Run as `python server.py SOCKET`; ends when its standard input does. `client.py` asks for a process, gets its number,
and its status when it has ended. A keeper, one for each, waits for both: if the client is killed, so is the process.
"""

import atexit
import gc
import importlib
import io
import json
import os
import runpy
import select
import signal
import socket
import struct
import sys
import threading
import types
from typing import Any

# all of torch, what torch.optim loads on first use, and what torchrun loads
PRELOADED = ("torch._dynamo", "torch.distributed.launcher.api", "torch.distributed.elastic.rendezvous.registry")
INSTALLED = sys.path[1:]  # without the folder of this file
OWN = os.environ.get("PYTHONPATH", "").split(os.pathsep)


def main(path: str) -> None:
    """Serves; returns in the processes that it starts, which then run what they were asked for."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        for name in PRELOADED:
            importlib.import_module(name)
        gc.freeze()  # so that the pages of what is loaded stay shared
        keepers = set[int]()
        while server in select.select([sys.stdin, server], [], [])[0]:
            client, _ = server.accept()
            if not (pid := os.fork()):
                server.close()
                return keep(client)
            client.close()
            keepers.add(pid)
            keepers -= ended(keepers)
        ended(keepers)
    os._exit(0)


def ended(processes: set[int]) -> set[int]:
    """Those of our processes that have ended, which are no longer there."""
    return {pid for pid in processes if os.waitpid(pid, os.WNOHANG)[0]}


def keep(client: socket.socket) -> None:
    """Starts the process of a client, where this returns, and tells the client its status."""
    head, streams, *_ = socket.recv_fds(client, 4, 3)
    request = json.loads(received(client, *struct.unpack("!I", head)))
    if not (pid := os.fork()):
        client.close()
        return become(request, streams)
    for stream in streams:
        os.close(stream)
    client.sendall(struct.pack("!i", pid))
    if client in select.select([os.pidfd_open(pid), client], [], [])[0]:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    try:
        client.sendall(struct.pack("!i", status))
    finally:
        os._exit(0)


def received(client: socket.socket, size: int) -> bytes:
    text = b""
    while len(text) < size:
        more = client.recv(size - len(text))
        assert more, "the client has ended"
        text += more
    return text


def become(request: dict[str, Any], streams: list[int]) -> None:
    """Makes this process what `python arguments` would be, before it runs them."""
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    if "SSDSL_PARENT" in os.environ:  # it ends with its parent: the keeper, which ends it with the client
        os.environ["SSDSL_PARENT"] = str(os.getppid())
    sys.argv = request["arguments"]
    if sys.argv[0] == "-u":
        del sys.argv[0]
        sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), write_through=True)  # type: ignore[type-var]


def run(arguments: list[str]) -> int:
    """The exit status of a script, `-m module` or `-c code`."""
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [*paths, *(path for path in INSTALLED if path not in (*OWN, *paths))]  # each once, as Python does
    try:
        match arguments:
            case ["-m", module, *_]:
                sys.path.insert(0, os.getcwd())
                del sys.argv[0]
                runpy.run_module(module, run_name="__main__", alter_sys=True)
            case ["-c", code, *_]:
                sys.path.insert(0, "")
                del sys.argv[1]
                exec(compile(code, "<string>", "exec"), new_main())
            case [script, *_]:
                sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
                with open(script, "rb") as file:
                    exec(compile(file.read(), script, "exec"), new_main(script))
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        return 1
    return 0


def end(status: int) -> None:
    """Ends as an interpreter does, but leaves the memory to the system."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def new_main(script: str | None = None) -> dict[str, Any]:
    """The names of a new `__main__`."""
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if script is not None:
        main.__file__ = script
    return vars(main)


if __name__ == "__main__":
    main(sys.argv[1])
    end(run(sys.argv.copy()))
