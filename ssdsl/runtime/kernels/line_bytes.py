"""The sizes of compressed lines (`compression.py`), which a compiler without torch needs."""

PLACES = 0x5C00  # a place in a line is a digit in this base, or two for longer lines


def line_bytes(size: int, itemsize: int, k: int | None) -> int:
    """The bytes of a line of `size` numbers of `itemsize` bytes each: of the `k` largest with their places, or of all
    in eight bits, and their scale.

    >>> line_bytes(1024, 4, k=64), line_bytes(1024, 4, k=None)
    (384, 1028)
    """
    return size + itemsize if k is None else min(k, size) * (itemsize + (2 if size <= PLACES else 4))
