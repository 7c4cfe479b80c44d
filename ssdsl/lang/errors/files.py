"""Diagnostics of a plan's file."""

import errno
import os

from ssdsl.text.diagnostic import Diagnostic

FOREIGN = "it is there, and ssdsl did not write it"
EXISTS = "it is there"
FULL = tuple(os.strerror(n).lower() for n in (errno.ENOSPC, errno.EDQUOT))  # reasons of a full disk


class NoSuchFile(Diagnostic):
    """The plan that the command names does not exist: `ssdsl check megatorn.ssp`.

    A plan is a file, or the name of a plan that comes with ssdsl (`ssdsl plans` lists these).
    """

    code = "E0101"
    title = "there is no plan `{name}`"
    help = "{suggestion}\n`ssdsl plans` lists the plans that come with ssdsl"
    name: str
    suggestion: str


class FileUnreadable(Diagnostic):
    """The plan's file exists but cannot be read: `ssdsl check examples/` names a folder."""

    code = "E0102"
    title = "cannot read `{name}`: {reason}"
    help = "name a text file that you may read"
    name: str
    reason: str


class FileNotUtf8(Diagnostic):
    """A plan is UTF-8 text. Editors that save in another encoding, or a binary file, lead here."""

    code = "E0103"
    title = "`{name}` is not UTF-8 text"
    label = "the byte {byte} is not UTF-8"
    help = "save the file as UTF-8"
    name: str
    byte: str


class FileTooLarge(Diagnostic):
    """A plan is a short text; a file beyond the limit is most likely not a plan."""

    code = "E0104"
    title = "`{name}` is larger than {limit_kib} KiB"
    help = "check that this file is the plan; loops and functions make a long plan short"
    name: str
    limit_kib: int


class FileUnwritable(Diagnostic):
    """A file that a command was told to write cannot be written: its folder does not exist, or is not yours, or its
    disk is full.

    Or it is there and was not written by ssdsl. A command replaces only what a command has written: a graph by a graph,
    a page by a page, the plan of a search by that of another. A search may also save into the plan that it searches.
    `ssdsl new` replaces nothing without `--force`.
    """

    code = "E0125"
    title = "`{file}` cannot be written: {reason}"
    file: str
    reason: str

    @property
    def change(self) -> str:
        if self.reason in FULL:
            return "free some space there, or give a file on another disk"
        if self.reason == FOREIGN:
            return "give another file, or remove this one"
        if self.reason == EXISTS:
            return "give another file with `-o`, or write over this one with `--force`"
        return "give a file in a folder that exists and that you may write to"
