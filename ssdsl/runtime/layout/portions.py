"""Portions: in which proportion the devices along axes have parts of a flat tensor."""

from collections.abc import Iterable, Mapping, Sequence

from .regions import Regions, parts_of


def joint_portions(
    axes: Iterable[str], ways: Mapping[str, int], portions: Iterable[tuple[str, Sequence[int]]]
) -> tuple[int, ...]:
    """The portions of the devices along several axes, the last axis innermost; `portions` has those of axes on which
    they are unequal.

    >>> joint_portions(("node", "gpu"), {"node": 2, "gpu": 3}, [("gpu", (3, 3, 2))])
    (3, 3, 2, 3, 3, 2)
    """
    given = dict(portions)
    found: tuple[int, ...] = (1,)
    for axis in axes:
        own = given.get(axis, (1,) * ways[axis])
        found = tuple(outer * portion for outer in found for portion in own)
    return found


def parts_in(portions: Sequence[int], elements: int) -> Regions:
    """The elements of each device; the sum of the portions divides their number.

    >>> parts_in((3, 3, 2), 16)
    (((0, 6),), ((6, 12),), ((12, 16),))
    """
    total = sum(portions)
    return parts_of([elements * portion // total for portion in portions])
