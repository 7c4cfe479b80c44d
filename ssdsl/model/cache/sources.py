"""Records the sources of a model: files, folders and variables that a user's code reads while it is built and captured.

Files are recorded when any code opens them, except those of Python, of installed packages (which are known by their
versions) and of the system. Modules are recorded when they are imported, with the other folders on the path that could
have had them. Listings of folders, queries of files that do not open them, and environment variables are recorded if a
user's code asks, itself or through functions that it calls. A source that cannot be compared later, such as the clock,
is a reason not to cache a graph. Reads by code that is not Python are not seen.
"""

import contextlib
import functools
import hashlib
import importlib.util
import logging
import os
import random
import stat
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.machinery import all_suffixes
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from ssdsl.lang.assets import PACKAGE, cache_folder

SYSTEM = ("/proc/", "/sys/")
LARGE = 64 << 20  # bytes: larger files are compared by size and time of change, not by content
CLOCK = (
    *("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"),
    *("localtime", "gmtime", "strftime", "ctime", "asctime"),
)
ALL = ""  # stands for a variable whose value is the names of all variables
LISTED = ("os.listdir", "os.scandir")
OUTSIDE = {
    **dict.fromkeys(("socket.connect", "socket.getaddrinfo"), "a connection"),
    **dict.fromkeys(("subprocess.Popen", "os.system", "os.posix_spawn", "os.exec", "os.fork"), "another process"),
    "sqlite3.connect": "a database",
    "ctypes.dlopen": "a library",
    "builtins.input": "the keyboard",
}
UNSEEN = {  # names in a user's code of functions whose calls cannot be noticed
    **dict.fromkeys(("now", "utcnow", "today"), "the clock"),
    **dict.fromkeys(
        ("default_rng", "RandomState", "Random", "SystemRandom", "urandom", "uuid1", "uuid4", "secrets"),
        "a random number",
    ),
    **dict.fromkeys(("load_file", "safe_open", "from_file", "from_pretrained", "fwalk"), "files by an extension"),
}


@dataclass(slots=True)
class Sources:
    """The sources of a model by their kinds, each with its state: checksums of `files` and `folders` by absolute path
    ("" if there is none); `looked`, the kind of file at paths that were only queried; values of `variables`; of
    `modules` that were looked for in a folder, the files there from which Python would choose."""

    states: dict[str, dict[str, str | bool | None]] = field(default_factory=lambda: {kind: {} for kind in STATES})
    lacking: str = ""  # a source that was read and cannot be compared later

    def note(self, kind: str, name: str) -> None:
        """Notes the state of a source, the first time."""
        if name not in self.states[kind]:
            self.states[kind][name] = STATES[kind](name)

    def hold(self) -> bool:
        """Whether no source has changed."""
        return all(STATES[kind](name) == was for kind in STATES for name, was in self.states[kind].items())


@contextlib.contextmanager
def noted() -> Iterator[Sources]:
    """A context in which all reads are recorded; after it, the sources are complete."""
    if "numpy" in sys.modules:
        import numpy.random  # noqa: F401  its generator has to be there before
    _installed()  # which reads variables itself
    _listen()
    recorder = _SourceRecorder()
    finder = _Asked(recorder)
    _recorders.append(recorder)
    sys.meta_path.insert(0, finder)
    try:
        with recorder.functions():
            yield recorder.sources
    finally:
        sys.meta_path.remove(finder)
        _recorders.remove(recorder)
    recorder.end()


class _SourceRecorder:
    """Notes everything that is read while it is in `_recorders`."""

    def __init__(self) -> None:
        self.sources = Sources()
        self.before = _generators()
        self.own = set[str]()  # paths that were written and variables that were set meanwhile
        self.modules = set[str]()  # the places of modules that were looked for
        self.inside = threading.local()  # `busy` while a thread notes something: it reads files itself

    def lack(self, what: str) -> None:
        self.sources.lacking = self.sources.lacking or what

    def record_event(self, event: str, args: tuple[Any, ...]) -> None:
        """Records an audit event of Python, or `looked`. One that cannot be recorded is `lacking`; the user's code
        continues."""
        if getattr(self.inside, "busy", False):
            return
        self.inside.busy = True
        try:
            if event == "open":
                self._opened(*args)
            elif event in LISTED:
                self._asked("folders", args[0], os.sep)
            elif event == "looked":
                self._asked("looked", args[0])
            elif event == "os.mkdir":
                self.own.add(os.path.abspath(os.fsdecode(args[0])))
            elif _asks():
                self.lack(OUTSIDE[event])
        except Exception as error:  # the path may be any object
            self.lack(f"what cannot be noted ({type(error).__name__})")
        finally:
            self.inside.busy = False

    def _opened(self, name: object, mode: object, flags: object) -> None:
        if not isinstance(name, (str, bytes, os.PathLike)):
            return
        path = os.path.abspath(os.fsdecode(name))
        if path.endswith(".pyc"):
            with contextlib.suppress(ValueError, NotImplementedError):
                path = importlib.util.source_from_cache(path)
        if is_installed(path) or self._is_made(path):
            return
        number = flags if isinstance(flags, int) else 0
        writes = number & (os.O_WRONLY | os.O_RDWR)
        if number & os.O_TRUNC or (writes and not os.path.exists(path)):
            self.own.add(path)
        elif number & os.O_WRONLY:  # what the file had remains, and may be read later
            return
        elif not os.path.exists(path) or os.path.isfile(path):
            self.sources.note("files", path)
        elif not os.path.isdir(path) and path != os.devnull and not path.startswith("/dev/"):
            self.lack("a pipe")

    def _asked(self, kind: str, name: object, end: str = "") -> None:
        """Notes that something is asked about a path, which a folder's separator may `end`."""
        if isinstance(name, (str, bytes, os.PathLike, type(None))):
            path = os.path.abspath(os.fsdecode(name or "."))
            if not is_installed(path + end) and not self._is_made(path) and _asks():
                self.sources.note(kind, path)

    def _is_made(self, path: str) -> bool:
        """Whether a path was created in this context, or lies in a folder that was."""
        return any(path == own or path.startswith(own + os.sep) for own in self.own)

    def end(self) -> None:
        """Adds the sources that are found at the end only: used random generators, names in the code that was read, and
        modules that were imported earlier."""
        for name, state in _generators().items():
            if state != self.before.get(name, state):
                told = "outside of the model's function" if name == "torch" else "without a seed"
                self.lack(f"random numbers of {name} {told}")
        for path in self.sources.states["files"]:
            for name in sorted(_names(path)):
                self.lack(UNSEEN[name])
        for module in list(sys.modules.values()):  # those, too, that were imported before
            file = getattr(module, "__file__", None)
            if isinstance(file, str) and _is_source(file):
                self.sources.note("files", file)
        for place in sorted(self.modules):
            self.sources.note("modules", place)

    @contextlib.contextmanager
    def functions(self) -> Iterator[None]:
        """A context in which functions report to the recorder if they ask for variables, the time or about files;
        seeding makes a generator new."""
        with contextlib.ExitStack() as stack:
            for name, told in (
                ("getitem", self._got),
                ("setitem", self._set),
                ("iter", self._named),
                ("len", self._named),
            ):
                _replaced(stack, type(os.environ), f"__{name}__", told)
            for name in CLOCK:
                _replaced(stack, time, name, self._clock)
            for name in ("stat", "lstat", "readlink", "access"):
                _replaced(stack, os, name, self._path)
            for owner in (random, sys.modules.get("numpy.random")):
                if owner is not None:
                    _replaced(stack, owner, "seed", self._seeded)
            if (torch := sys.modules.get("torch")) is not None:
                _replaced(stack, torch, "seed", self._seeds_at_random)
                _replaced(stack, torch.jit, "load", self._loaded)
            stack.callback(setattr, sys, "argv", sys.argv)
            sys.argv = _Arguments(sys.argv, self)
            yield

    def _got(self, function: Callable[..., Any], variables: Any, name: Any) -> Any:
        value = None
        try:
            value = function(variables, name)
        finally:
            word = os.fsdecode(name)
            if f"${word}" not in self.own and _asks():
                self.sources.states["variables"].setdefault(word, None if value is None else os.fsdecode(value))
        return value

    def _set(self, function: Callable[..., Any], variables: Any, name: Any, value: Any) -> None:
        if _asks():
            self.own.add(f"${os.fsdecode(name)}")
        function(variables, name, value)

    def _named(self, function: Callable[..., Any], variables: Any) -> Any:
        if _asks():
            self.sources.note("variables", ALL)
        return function(variables)

    def _clock(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if sys._getframe(2).f_code.co_filename != logging.__file__ and _asks():  # the time of a message is no source
            self.lack("the clock")
        return function(*args, **options)

    def _path(self, function: Callable[..., Any], path: Any, *args: Any, **options: Any) -> Any:
        self.record_event("looked", (path,))
        return function(path, *args, **options)

    def _loaded(self, function: Callable[..., Any], file: Any, *args: Any, **options: Any) -> Any:
        self.record_event("open", (file, "r", 0))
        return function(file, *args, **options)

    def _seeded(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        result = function(*args, **options)
        if args and args[0] is not None:
            self.before |= {name: state for name, state in _generators().items() if name != "torch"}
        return result

    def _seeds_at_random(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        self.lack("a random number")
        return function(*args, **options)


class _Arguments(list[str]):
    """The command line; the recorder hears of a user's code that reads more of it than the name of the program."""

    def __init__(self, words: list[str], recorder: _SourceRecorder) -> None:
        super().__init__(words)
        self.recorder = recorder

    def _read(self) -> None:
        if _asks():
            self.recorder.lack("the command line")

    def __getitem__(self, place: Any) -> Any:
        if place != 0:
            self._read()
        return super().__getitem__(place)

    def __iter__(self) -> Iterator[str]:
        self._read()
        return super().__iter__()

    def __contains__(self, word: object) -> bool:
        self._read()
        return super().__contains__(word)

    def __len__(self) -> int:
        self._read()
        return super().__len__()


class _Asked:
    """An import finder that finds nothing. It notes which modules are looked for, and in which folders of the user."""

    def __init__(self, recorder: _SourceRecorder) -> None:
        self.recorder = recorder

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> None:
        last = name.rpartition(".")[2]
        for folder in map(os.path.abspath, sys.path if path is None else path):
            if not is_installed(folder + os.sep):
                self.recorder.modules.add(f"{folder}{os.sep}{last}")


def _replaced(stack: contextlib.ExitStack, owner: Any, name: str, told: Callable[..., Any]) -> None:
    """Replaces a function by `told(function, ...)` until the stack is closed."""
    function = getattr(owner, name)

    @functools.wraps(function)
    def replacement(*args: Any, **options: Any) -> Any:
        return told(function, *args, **options) if _recorders else function(*args, **options)

    setattr(owner, name, replacement)
    stack.callback(setattr, owner, name, function)


_recorders: list[_SourceRecorder] = []


@cache
def _listen() -> None:
    """Passes audit events to the watches. An audit hook stays for the rest of the process, so it is added once."""

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if _recorders and (event in ("open", "os.mkdir") or event in LISTED or event in OUTSIDE):
            for recorder in list(_recorders):
                recorder.record_event(event, args)

    sys.addaudithook(hook)


@cache
def _installed() -> tuple[str, ...]:
    """The folders of Python, its packages, ssdsl and its cache, with a separator at the end."""
    own = ("stdlib", "platstdlib", "purelib", "platlib", "scripts")
    paths = {path for name, path in sysconfig.get_paths().items() if name in own}
    paths |= {p for p in sys.path if os.path.basename(p) in ("site-packages", "dist-packages") or _has_packages(p)}
    paths.add(str(PACKAGE))
    with contextlib.suppress(RuntimeError):  # a user without a home
        paths.add(str(cache_folder("")))
    return tuple(p + os.sep for p in sorted({os.path.abspath(p) for p in paths} | {os.path.realpath(p) for p in paths}))


def _has_packages(folder: str) -> bool:
    """Whether packages were installed into a folder, as by `pip install --target`."""
    return any(Path(folder or ".").glob("*.dist-info"))


@cache  # one command asks about the files of thousands of modules, several times
def is_installed(path: str) -> bool:
    """Whether a file belongs to Python, a package, ssdsl or the system; one that a package only links to does not."""
    return path.startswith((*_installed(), *SYSTEM)) and _stays(os.path.dirname(path))


@cache
def _is_source(path: str) -> bool:
    """Whether the file of a module is noted as a source."""
    return os.path.isabs(path) and not is_installed(path)


@cache
def _stays(folder: str) -> bool:
    """Whether an installed folder is no link to another place."""
    return (os.path.realpath(folder) + os.sep).startswith((*_installed(), *SYSTEM))


@cache
def _is_own(file: str) -> bool:
    """Whether a file of code is ssdsl's."""
    return file.startswith(f"{PACKAGE}{os.sep}")


@cache
def _is_users(file: str) -> bool:
    """Whether a file of code is a user's."""
    return not file.startswith("<") and not is_installed(os.path.abspath(file))


def _asks() -> bool:
    """Whether a user's own code asks, itself or through functions that it calls. Reads of a package while it is
    imported are not the user's, nor are ssdsl's own for a script of the user. A thread other than the main one counts
    as the user's: its stack does not show who started it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if _is_users(file):
            return True
        if file.startswith("<frozen importlib") or (_is_own(file) and file != __file__):
            return False
        frame = frame.f_back
    return threading.current_thread() is not threading.main_thread()


# -- calls that cannot be observed -----------------------------------------------------------------------------------


def _generators() -> dict[str, Any]:
    """The states of all random generators: Python's, NumPy's and torch's, as far as these are loaded."""
    found: dict[str, Any] = {"Python": random.getstate()}
    if (numpy := sys.modules.get("numpy.random")) is not None:
        found["NumPy"] = tuple(getattr(p, "tolist", lambda p=p: p)() for p in numpy.get_state())
    if (torch := sys.modules.get("torch")) is not None:
        state, seed = torch.get_rng_state(), torch.initial_seed()
        fresh = torch.equal(state, torch.Generator().manual_seed(seed).get_state())
        found["torch"] = "unused" if fresh else state.tolist()  # a seed alone does not count: ssdsl sets one
    return found


def _names(path: str) -> set[str]:
    """The names of UNSEEN that a file of code uses."""
    if not path.endswith(".py"):
        return set()
    try:
        code = compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)
    except (OSError, SyntaxError, ValueError):
        return set()
    return _names_in(code) & UNSEEN.keys()


def _names_in(code: CodeType) -> set[str]:
    inner = (c for c in code.co_consts if isinstance(c, CodeType))
    return {*code.co_names}.union(*map(_names_in, inner))


# -- how things are compared -------------------------------------------------------------------------------------------


def _variable(name: str) -> str | None:
    return _names_of_variables() if name == ALL else os.environ.get(name)


def _names_of_variables() -> str:
    return "=".join(sorted(map(os.fsdecode, os.environ._data)))  # type: ignore[attr-defined]


def _module_at(place: str) -> str:
    """The endings of the files from which Python would choose a module of this name in a folder; "/" is a folder."""
    endings = ["/", *(f"{last}{end}" for last in ("/__init__", "") for end in all_suffixes())]
    return " ".join(ending for ending in endings if os.path.exists(f"{place}{ending}"))


def _state_of(path: str) -> str:
    """The kind of a path: a folder, a file of a size, a link to somewhere; "" if it does not exist."""
    try:
        about = os.lstat(path)
        if stat.S_ISLNK(about.st_mode):
            return f"link to {os.readlink(path)}: {os.path.realpath(path)}"
    except (OSError, ValueError):
        return ""
    return f"file of {about.st_size}" if stat.S_ISREG(about.st_mode) else "folder"


def _sum_of_file(path: str) -> str:
    try:
        if (about := os.stat(path)).st_size > LARGE:
            return f"{about.st_size} {about.st_mtime_ns}"
        return hashlib.sha256(Path(path).read_bytes()).hexdigest() if stat.S_ISREG(about.st_mode) else ""
    except (OSError, ValueError):
        return ""


def _sum_of_folder(path: str) -> str:
    try:
        return hashlib.sha256(b"\n".join(sorted(map(os.fsencode, os.listdir(path))))).hexdigest()
    except (OSError, ValueError):
        return ""


STATES: dict[str, Callable[[str], Any]] = {  # what is compared of each kind of source, the cheapest first
    "variables": _variable,
    "modules": _module_at,
    "looked": _state_of,
    "folders": _sum_of_folder,
    "files": _sum_of_file,
}
