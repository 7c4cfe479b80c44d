"""A disk that counts what ranks do to it, and fails where a test says.

Every call that changes what is on the disk goes through `Disk.does`: opening to write, writing, fsync, rename, mkdir,
rmdir and unlink, whether our code, `shutil` or torch's writer makes it. A rank that is killed does nothing to the disk
any more, whatever handlers still run, nor do the others if they die with it.
"""

import errno
import io
import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

BUFFER = 1024  # of files that are written: smaller than Python's, so that small files take several writes


class Killed(BaseException):
    """What a killed rank's thread ends with."""


@dataclass
class Disk:
    """`rank` is struck at its call number `at`. `full`: from then on the disk is full, for all; else that rank is
    killed, or all are with `everybody`. Without `rank` it only counts."""

    rank: int | None = None
    at: int = 0
    full: bool = False
    everybody: bool = False
    ranks: dict[int, int] = field(default_factory=dict)  # by thread
    counts: Counter[int] = field(default_factory=Counter)
    log: list[tuple[int, str]] = field(default_factory=list)
    struck: bool = False
    lock: Any = field(default_factory=threading.RLock)
    data: set[Path] = field(default_factory=set)  # files of which a loss of power may lose bytes
    names: set[Path] = field(default_factory=set)  # files and folders that it may lose altogether
    unsynced: list[set[Path]] = field(default_factory=list)  # both, when `latest` was replaced

    def does(self, what: str, frees: bool = False) -> bool:
        """Counts a call; raises where it does not happen. Whether it happens in part."""
        rank = self.ranks.get(threading.get_ident())
        if rank is None:  # the test itself
            return False
        with self.lock:
            mine = self.counts[rank]
            self.counts[rank] += 1
            self.log.append((rank, what))
            now = rank == self.rank and mine == self.at
            self.struck |= now
            if not self.struck:
                return False
            if self.full:
                if frees:
                    return False
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if now:
                return True
            if self.everybody or rank == self.rank:
                raise Killed
            return False

    @contextmanager
    def as_rank(self, rank: int) -> Iterator[None]:
        """A context in which this thread is the rank."""
        self.ranks[threading.get_ident()] = rank
        try:
            yield
        finally:
            del self.ranks[threading.get_ident()]

    @contextmanager
    def mounted(self) -> Iterator[None]:
        """A context in which all calls go through this disk."""
        with pytest.MonkeyPatch.context() as patch:
            for name in ("fsync", "replace", "rename", "mkdir", "unlink", "rmdir", "remove"):
                patch.setattr(os, name, self._counted(name, getattr(os, name)))
            patch.setattr(Path, "open", self._opened(Path.open))
            yield

    def _counted(self, name: str, call: Any) -> Any:
        def counted(*arguments: Any, **options: Any) -> Any:
            with self.lock:  # others see all of it, or nothing
                if self.does(name, frees=name in ("unlink", "rmdir", "remove")):
                    raise Killed
                self._notes(name, arguments)
                return call(*arguments, **options)

        return counted

    def _notes(self, name: str, arguments: tuple[Any, ...]) -> None:
        """What a loss of power would lose after this call."""
        if threading.get_ident() not in self.ranks:
            return
        match name:
            case "fsync":
                synced = Path(os.readlink(f"/proc/self/fd/{arguments[0]}"))
                self.data.discard(synced)
                self.names = {name for name in self.names if name.parent != synced}
            case "rename" | "replace":
                source, target = map(Path, arguments)
                if target.name == "latest":
                    self.unsynced.append(self.data | self.names - {source})
                self.data = {target if path == source else path for path in self.data}
                self.names = self.names - {source} | {target}
            case "mkdir":
                self.names.add(Path(arguments[0]))

    def _opened(self, call: Any) -> Any:
        def opened(path: Path, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            if "a" in mode:  # a lock, whose text is for people
                with self.lock:
                    if self.does("open"):
                        raise Killed
                    return call(path, mode, *arguments, **options)
            if "w" not in mode:
                return call(path, mode, *arguments, **options)
            with self.lock:
                if self.does("open"):
                    raise Killed
                raw = _File(self, path)
                self.names.add(path)
            buffered = io.BufferedWriter(raw, BUFFER)
            return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding="utf-8", write_through=False)

        return opened


class _File(io.FileIO):
    """A file that is written through the disk; of a write that is cut off half arrives."""

    def __init__(self, disk: Disk, path: Path) -> None:
        super().__init__(path, "w")
        self.disk, self.path = disk, path

    def write(self, data: Any) -> int:
        with self.disk.lock:
            if self.disk.does("write"):
                super().write(bytes(data)[: len(data) // 2])
                raise Killed
            self.disk.data.add(self.path)
            return super().write(data)
