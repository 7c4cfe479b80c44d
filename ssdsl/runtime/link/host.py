"""The emulated link between the device of a rank and its host: `--link ...,host=12GB/s`. Without it copies take the
time that they take."""

import os
import time
from functools import cache

from .speed import Speed

VARIABLE = "SSDSL_LINK"  # the environment's, with the text of `--link`; processes of torchrun inherit it


@cache
def _bytes_per_s(text: str) -> float | None:
    return Speed.read(text).host_bytes_per_s if text else None


class HostLink:
    """A copy of so many bytes over the link. As a context it ends no earlier than the link carries them."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes, self.start = size_bytes, 0.0

    def __enter__(self) -> None:
        self.start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        if (rate := _bytes_per_s(os.environ.get(VARIABLE, ""))) is not None:
            time.sleep(max(0.0, self.start + self.size_bytes / rate - time.perf_counter()))
