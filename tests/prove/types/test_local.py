"""Digits of regions over several axes."""

from ssdsl.prove.types.local import LocalDigit, on_axes


def test_devices_in_another_order_share_one_digit() -> None:
    """The first device of an axis has to begin at position 0 for a plain digit; else the axes have regions together."""
    reversed_order = (((3, 4),), ((2, 3),), ((1, 2),), ((0, 1),))
    assert on_axes(0, 4, reversed_order, (2, 2)) == (LocalDigit(0, 1, 4, reversed_order),) * 2
