"""A setting of a torchtitan configuration."""

from typing import Any

from ssdsl.record import Record


class UnreadValue(Record):
    """A value that only running the configuration would give: the expression that stands for it."""

    expression: str


class TitanSetting(Record):
    """A key with its section, such as `training.seq_len`, its value, how it is written, and the line of its source.

    `replaced` says that a later line of the same source gives the key, or what it is in, another value.
    """

    key: str
    value: Any
    written: str
    line: int = 0
    replaced: bool = False
