"""Folds over the tape of a function's memory."""

from ssdsl.analyse.tape import Touch, TouchKind, kept, made_again, peak_bytes
from ssdsl.ir.uses import InstrPlace


def touch(kind: TouchKind, storage: str, size_bytes: int = 0, section: int = 0) -> Touch:
    return Touch(InstrPlace(section, 0), storage, kind, size_bytes)


def test_what_backward_reads_is_kept_once() -> None:
    touches = [
        touch(TouchKind.READ, "x", 8),
        touch(TouchKind.AGAIN, "y", 4),
        touch(TouchKind.READ, "x", 8),
        touch(TouchKind.DROP, "y"),
    ]
    assert kept(touches) == {"x": 8}


def test_the_peak_is_before_kept_storages_are_dropped() -> None:
    make, drop = touch(TouchKind.MAKE, "gradient", 4), touch(TouchKind.DROP, "x")
    assert peak_bytes([make, drop], {"x": 4}) == 4
    assert peak_bytes([drop, make], {"x": 4}) == 0


def test_a_storage_grows_to_the_bytes_of_its_last_touch() -> None:
    grows = [touch(TouchKind.MAKE, "sum", 4), touch(TouchKind.MAKE, "sum", 6), touch(TouchKind.MAKE, "sum", 2)]
    assert peak_bytes(grows, {}) == 6
    assert peak_bytes(grows, {"sum": 5}) == 1  # which is there already but for a byte
    assert peak_bytes([*grows, touch(TouchKind.DROP, "sum"), touch(TouchKind.GATHER, "weight", 5)], {}) == 6


def test_sections_make_again_what_is_not_there() -> None:
    touches = [
        touch(TouchKind.AGAIN, "y", 4, section=2),
        touch(TouchKind.AGAIN, "x", 8, section=2),
        touch(TouchKind.AGAIN, "y", 4, section=1),
        touch(TouchKind.MAKE, "gradient", 16, section=1),
    ]
    assert made_again(touches, {"x": 8}) == {2: 4, 1: 4}
