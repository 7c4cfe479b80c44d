"""Parts joined to the parts before them: with the runs 0..5, 5..9, 9..13 the earlier parts are 0..0, 0..5, 0..9, and
the extended ones 0..5, 0..9, 0..13.

An input of a function's own earlier parts first gets the type written at it; once the function is typed, this is
compared with what it leaves. That is no circle: a task runs behind those whose parts it reads (`roles/roles.py`).
"""

from ssdsl.ir.function import Earlier, Extend, Function, FunctionInput
from ssdsl.ir.value import Name, Time
from ssdsl.prove.failures import Rule, Wrong
from ssdsl.prove.types.local import Digit, Factors, Local, designated, in_parts


def is_earlier(given: FunctionInput) -> bool:
    """Whether an input has the parts before the running one."""
    return any(isinstance(m, Earlier) for m in given.merges)


def before(local: Local, merge: Earlier, shape: Factors) -> Local:
    """The type of the earlier parts of a tensor along an index. Raises Wrong unless its parts are runs, end to end."""
    time, digit = Time(merge.index.name), _digit(local, Time(merge.index.name))
    free = local.freeing(time)
    found = designated(shape, frozenset(free.fixed()), merge.cut)
    if found != digit:
        raise Wrong(Rule.MERGE, digit, f"{merge.cut}: {found}")
    at = tuple(((0, start),) for start, _ in _runs(digit, shape))
    return free.fixing(time, Digit(digit.factor, 1, digit.parts, at))


def extended(instr: Extend, local: Local, earlier: Local, shape: Factors) -> Local:
    """The type of a part joined to the parts before it. Raises Wrong if `earlier` is something else."""
    time = Time(instr.index.name)
    wanted = before(local, Earlier(instr.index, instr.cut), shape)
    if earlier != wanted:
        raise Wrong(Rule.READ, wanted, earlier)
    digit = _digit(local, time)
    size = [n for axis in shape for n in axis][digit.factor]
    behind = in_parts(digit.factor, size, tuple(((0, end),) for _, end in _runs(digit, shape)))
    return local.freeing(time) if behind is None else local.freeing(time).fixing(time, behind)


def check_returned(function: Function, given: FunctionInput, name: Name, merge: Earlier) -> None:
    """Raises Wrong unless a value is extended by its own earlier parts. Then all gradients are of one value: a part's
    gradient is the sum of its own and those that later parts give back to it."""
    for instr in function.body():
        if isinstance(instr, Extend):
            found = (instr.earlier, instr.source, instr.index, instr.cut)
            if found == (given.var.name, name, merge.index, merge.cut):
                return
    raise Wrong(Rule.COUNTED, f"an extension of {name} by its own earlier parts", given.var.name)


def _digit(local: Local, time: Time) -> Digit:
    digit = local.digit(time)
    if digit is None or time in local.partial:
        raise Wrong(Rule.MERGE, f"parts along {time.name}", local)
    return digit


def _runs(digit: Digit, shape: Factors) -> tuple[tuple[int, int], ...]:
    size = [n for axis in shape for n in axis][digit.factor]
    if digit.at is None:
        found = tuple((k * digit.stride, (k + 1) * digit.stride) for k in range(digit.parts))
    else:
        found = tuple(run for runs in digit.at for run in runs)
    ends = [0, *(end for _, end in found)]
    if len(found) != digit.parts or [start for start, _ in found] != ends[:-1] or ends[-1] != size:
        raise Wrong(Rule.NEST, f"runs of {size}, end to end", digit)
    return found
