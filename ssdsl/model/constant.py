"""A tensor that is stored in a captured program, as bytes."""

import math
import struct
from typing import Any

from ssdsl.record import Record

FORMATS = {  # the letters of one number in the module `struct`; bfloat16 is the upper half of a float32
    "float64": "d",
    "float32": "f",
    "float16": "e",
    "bfloat16": "H",
    "complex64": "ff",
    "complex128": "dd",
    "int64": "q",
    "int32": "i",
    "int16": "h",
    "int8": "b",
    "uint8": "B",
    "bool": "?",
}


class Constant(Record):
    """A tensor with its numbers as they lie in memory (little-endian, contiguous), or None if it has none."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes | None

    def numbers(self) -> Any:
        """The numbers as nested lists; a tensor without axes gives one number.

        >>> Constant("int64", (2, 1), bytes([7] + [0] * 7 + [8] + [0] * 7)).numbers()
        [[7], [8]]
        """
        assert self.data is not None
        form = FORMATS[self.dtype]
        found: list[Any] = list(struct.unpack("<" + form * math.prod(self.shape), self.data))
        if self.dtype == "bfloat16":
            found = [struct.unpack("<f", struct.pack("<I", word << 16))[0] for word in found]
        elif self.dtype.startswith("complex"):
            found = [complex(*pair) for pair in zip(found[::2], found[1::2], strict=True)]
        for size in self.shape[:0:-1]:
            found = [found[at : at + size] for at in range(0, len(found), size)]
        return found if self.shape else found[0]
