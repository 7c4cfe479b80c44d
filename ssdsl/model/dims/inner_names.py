"""Names of the factors that one dimension has, the outermost first: `heads` and `heads_per_group`; `batch`,
`batch_inner1` and `batch_inner2`."""

import re

PER_GROUP = "heads_per_group"  # heads of queries that share a head of keys
IN_GROUPS = {"heads": PER_GROUP}  # the name of the second factor, where it has one of its own


def factor_name(name: str, depth: int) -> str:
    """The name of a factor of the dimension `name`: 0 is the outermost.

    >>> [factor_name("heads", depth) for depth in range(3)], factor_name("batch", 1)
    (['heads', 'heads_per_group', 'heads_inner2'], 'batch_inner1')
    """
    if depth == 0:
        return name
    return IN_GROUPS.get(name, f"{name}_inner1") if depth == 1 else f"{name}_inner{depth}"


def next_inside(name: str) -> str:
    """The name of the factor inside of the one with this name.

    >>> [next_inside(name) for name in ("heads", "heads_per_group", "batch_inner1")]
    ['heads_per_group', 'heads_inner2', 'batch_inner2']
    """
    outer = next((outer for outer, inner in IN_GROUPS.items() if inner == name), None)
    if outer is not None:
        return factor_name(outer, 2)
    if (found := re.fullmatch(r"(.+)_inner(\d+)", name)) is not None:
        return factor_name(found[1], int(found[2]) + 1)
    return factor_name(name, 1)
