"""What a search ranks plans by."""

from enum import StrEnum


class By(StrEnum):
    """The use of devices, in device-seconds of a step, or what a step costs."""

    DEVICES = "devices"
    COST = "cost"
