"""The rule that experiments showed for one call of an operator that has no row."""

from ssdsl.record import Record


class FoundRule(Record):
    """A rule that held in all experiments, and nothing beyond what they showed.

    `signature` is written as in a row; `linear_in` has sets of parameters, as in a row. `flows` says for each result
    whether a gradient flows through it. `contraction`: it sums products of two inputs. `module` is the Python module
    that defines the operator, empty for torch's own. `why_whole` says why nothing can be split, if nothing can.
    `unsteady`: the same inputs gave other results.
    """

    signature: str
    linear_in: tuple[str, ...] = ()
    flows: tuple[bool, ...] = ()
    contraction: bool = False
    module: str = ""
    why_whole: str = ""
    unsteady: bool = False
