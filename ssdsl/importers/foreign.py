"""What a user gives to `ssdsl import`: a file of another tool, a command line, or the name of a model."""

from pathlib import Path

from ssdsl.record import Record


class Foreign(Record):
    """`given` is what the user typed, `path` the file or folder that it names, if it does, `text` what stands in the
    file, or what was typed."""

    given: str
    text: str
    path: Path | None = None
