"""The sizes of compressed lines (`compression.py`), which a compiler without torch needs."""

SHORT = 2**15  # lines that are no longer have their places in 16 bits


def line_bytes(size: int, itemsize: int, k: int | None) -> int:
    """The bytes of a line of `size` numbers of `itemsize` bytes each: of the `k` largest with their places, or of all
    in eight bits, and their scale.

    >>> line_bytes(1024, 4, k=64), line_bytes(1024, 4, k=None)
    (384, 1028)
    """
    return size + itemsize if k is None else min(k, size) * (itemsize + (2 if size <= SHORT else 4))
