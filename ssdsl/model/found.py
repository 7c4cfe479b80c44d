"""What experiments showed of one call of an operator that has no row."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Found:
    """A rule that was seen to hold, and no wider.

    `signature` is written as in a row. `linear_in` are sets of parameters, as in a row. `flows` says of each result
    whether a gradient flows through it. `contraction`: it sums products of two inputs. `module` is the Python module
    that defines the operator, empty for torch's own. `why_whole` says why nothing can be split, where that is so.
    `unsteady`: the same inputs gave other results.
    """

    signature: str
    linear_in: tuple[str, ...] = ()
    flows: tuple[bool, ...] = ()
    contraction: bool = False
    module: str = ""
    why_whole: str = ""
    unsteady: bool = False
