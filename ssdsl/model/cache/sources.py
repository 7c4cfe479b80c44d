"""What a model was made from: the files, folders and variables that a user's code read while it was built and captured.

Files are noted as they are opened, whoever opens them, apart from those of Python, of installed packages (which are
known by their versions) and of the system; modules by their source files, though they were imported before. Variables
of the environment, folders and the clock are noted where a user's own code asks for them. What cannot be compared
later, such as the clock, is a reason not to keep a graph. Code that is not Python is not seen.
"""

import contextlib
import functools
import hashlib
import os
import random
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from ssdsl.lang.assets import PACKAGE, cache_folder

SYSTEM = ("/dev/", "/proc/", "/sys/")
CLOCK = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns")
ALL = ""  # in place of the name of a variable: the names of all of them
LISTED = ("os.listdir", "os.scandir")
OUTSIDE = {
    **dict.fromkeys(("socket.connect", "socket.getaddrinfo"), "a connection"),
    **dict.fromkeys(("subprocess.Popen", "os.system", "os.posix_spawn", "os.exec", "os.fork"), "another process"),
}
UNSEEN = {  # names in a user's code of what nobody is told of when it is called
    **dict.fromkeys(("now", "utcnow", "today"), "the clock"),
    **dict.fromkeys(
        ("default_rng", "SystemRandom", "urandom", "uuid1", "uuid4", "token_bytes", "token_hex"), "a random number"
    ),
}


@dataclass(slots=True)
class Sources:
    """Files and folders by their absolute paths with checksums, "" where there is none; variables by their values."""

    files: dict[str, str] = field(default_factory=dict)
    folders: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str | None] = field(default_factory=dict)
    lacking: str = ""  # what else was read, of which nobody can tell whether it is the same

    def hold(self) -> bool:
        """Whether all is as it was."""
        return (
            all(_variable(name) == value for name, value in self.variables.items())
            and all(_sum_of_folder(path) == known for path, known in self.folders.items())
            and all(_sum_of_file(path) == known for path, known in self.files.items())
        )

    def as_json(self) -> dict[str, Any]:
        """As `from_json` takes it."""
        return {"files": self.files, "folders": self.folders, "variables": self.variables}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Sources":
        """Raises LookupError, TypeError and ValueError where that is something else."""
        return cls(dict(data["files"]), dict(data["folders"]), dict(data["variables"]))


@contextlib.contextmanager
def noted() -> Iterator[Sources]:
    """Within it, what is read is noted; behind it, the sources are complete."""
    watch, before = _Watch(Sources()), _generators()
    _installed()  # which reads variables itself
    _listen()
    _watches.append(watch)
    try:
        with watch.environment(), watch.clock():
            yield watch.sources
    finally:
        _watches.remove(watch)
    for name, state in _generators().items():
        if state != before.get(name, _unused(name, state)):
            watch.lack(f"random numbers of {name}")
    watch.modules()


@dataclass(slots=True)
class _Watch:
    sources: Sources
    busy: bool = False  # what is opened meanwhile is opened here

    def lack(self, what: str) -> None:
        self.sources.lacking = self.sources.lacking or what

    def heard(self, event: str, args: tuple[Any, ...]) -> None:
        """An event of Python's own audit."""
        if self.busy:
            return
        self.busy = True
        try:
            if event == "open":
                self._opened(*args)
            elif event in LISTED:
                self._listed(args[0])
            elif _asks(anywhere=True):
                self.lack(OUTSIDE[event])
        finally:
            self.busy = False

    def _opened(self, name: object, mode: object, flags: object) -> None:
        if not isinstance(name, (str, bytes, os.PathLike)):
            return
        path = os.path.abspath(os.fsdecode(name))
        writes = flags & (os.O_WRONLY | os.O_RDWR) if isinstance(flags, int) else "r" not in str(mode or "r")
        if not writes and not is_installed(path) and not path.endswith(".pyc") and not os.path.isdir(path):
            self.sources.files.setdefault(path, _sum_of_file(path))

    def _listed(self, name: object) -> None:
        if isinstance(name, (str, bytes, os.PathLike, type(None))):
            path = os.path.abspath(os.fsdecode(name or "."))
            if not is_installed(path + os.sep) and _asks(anywhere=True):
                self.sources.folders.setdefault(path, _sum_of_folder(path))

    def modules(self) -> None:
        """The source files of all modules that are no package's; what is in them that cannot be seen."""
        for module in list(sys.modules.values()):
            given = getattr(module, "__file__", None)
            path = given if isinstance(given, str) and os.path.isabs(given) else ""
            if not path or is_installed(path) or path.endswith((".so", ".pyd")):
                continue
            self.sources.files.setdefault(path, _sum_of_file(path))
            for name in sorted(_names(path)):
                self.lack(UNSEEN[name])

    @contextlib.contextmanager
    def environment(self) -> Iterator[None]:
        """Within it, variables that a user's code asks for are noted."""
        before, variables = type(os.environ), self.sources.variables

        class Noting(before):  # type: ignore[misc, valid-type]
            def __getitem__(self, name: str) -> str:
                value = None
                try:
                    value = str(super().__getitem__(name))
                finally:
                    if _asks():
                        variables.setdefault(name, value)
                return value

            def __iter__(self) -> Iterator[str]:
                if _asks():
                    variables.setdefault(ALL, _names_of_variables())
                return super().__iter__()  # type: ignore[no-any-return]

        os.environ.__class__ = Noting
        try:
            yield
        finally:
            os.environ.__class__ = before

    @contextlib.contextmanager
    def clock(self) -> Iterator[None]:
        """Within it, a user's code that asks for the time is noted."""
        own = {name: getattr(time, name) for name in CLOCK}

        def told(function: Callable[[], Any]) -> Callable[[], Any]:
            @functools.wraps(function)
            def asked() -> Any:
                if self in _watches and _asks():
                    self.lack("the clock")
                return function()

            return asked

        for name, function in own.items():
            setattr(time, name, told(function))
        try:
            yield
        finally:
            for name, function in own.items():
                setattr(time, name, function)


_watches: list[_Watch] = []


@cache
def _listen() -> None:
    """Python tells all that is opened, for the rest of the process; it is heard while there is a watch."""

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if _watches and (event == "open" or event in LISTED or event in OUTSIDE):
            for watch in list(_watches):
                watch.heard(event, args)

    sys.addaudithook(hook)


@cache
def _installed() -> tuple[str, ...]:
    """Where Python, its packages, ssdsl and what it keeps lie."""
    paths = {
        path
        for name, path in sysconfig.get_paths().items()
        if name in ("stdlib", "platstdlib", "purelib", "platlib", "scripts")
    }
    paths |= {p for p in sys.path if os.path.basename(p) in ("site-packages", "dist-packages")}
    paths.add(str(PACKAGE))
    with contextlib.suppress(RuntimeError):  # a user without a home
        paths.add(str(cache_folder("")))
    return tuple(p + os.sep for p in sorted({os.path.abspath(p) for p in paths} | {os.path.realpath(p) for p in paths}))


def is_installed(path: str) -> bool:
    """Whether a file is of Python, of a package, of ssdsl or of the system."""
    return path.startswith((*_installed(), *SYSTEM))


@cache
def _is_own(file: str) -> bool:
    """Whether a file of code is ssdsl's."""
    return file.startswith(f"{PACKAGE}{os.sep}")


@cache
def _is_users(file: str) -> bool:
    """Whether a file of code is a user's."""
    return not file.startswith("<") and not is_installed(os.path.abspath(file))


def _asks(*, anywhere: bool = False) -> bool:
    """Whether a user's own code is what asks: it calls, or, `anywhere`, what it calls does. What a package does while
    it is imported is not the user's, nor is what ssdsl does for a script of the user's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if _is_users(file):
            return True
        if file.startswith("<frozen importlib") or (_is_own(file) and file != __file__):
            return False
        if not anywhere and not file.startswith("<") and file != __file__:
            return False
        frame = frame.f_back
    return False


# -- what is not seen when it is called --------------------------------------------------------------------------------


def _generators() -> dict[str, Any]:
    """The states of the generators of random numbers that there are."""
    found: dict[str, Any] = {"Python": random.getstate()}
    if (numpy := sys.modules.get("numpy.random")) is not None:
        found["NumPy"] = tuple(getattr(p, "tolist", lambda p=p: p)() for p in numpy.get_state())
    if (torch := sys.modules.get("torch")) is not None:
        state, seed = torch.get_rng_state(), torch.initial_seed()
        fresh = torch.equal(state, torch.Generator().manual_seed(seed).get_state())
        found["torch"] = "unused" if fresh else state.tolist()  # whatever the seed is: the model's own is given
    return found


def _unused(name: str, state: Any) -> Any:
    """The state of a generator that was not there before, if nothing was drawn."""
    return state if name == "NumPy" and state[2] in (623, 624) else "unused"


def _names(path: str) -> set[str]:
    """The names in a module's code that are in UNSEEN."""
    try:
        code = compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)
    except (OSError, SyntaxError, ValueError):  # it is written in another language
        return set()
    return _names_in(code) & UNSEEN.keys()


def _names_in(code: CodeType) -> set[str]:
    inner = (c for c in code.co_consts if isinstance(c, CodeType))
    return {*code.co_names}.union(*map(_names_in, inner))


def _variable(name: str) -> str | None:
    return _names_of_variables() if name == ALL else os.environ.get(name)


def _names_of_variables() -> str:
    return "=".join(sorted(map(os.fsdecode, os.environ._data)))  # type: ignore[attr-defined]


def _sum_of_file(path: str) -> str:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return ""


def _sum_of_folder(path: str) -> str:
    try:
        return hashlib.sha256("\n".join(sorted(os.listdir(path))).encode()).hexdigest()
    except OSError:
        return ""
