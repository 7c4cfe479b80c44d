"""Names for dimension classes: inputs name theirs, roles name others, the rest is named by what introduces it."""

from collections.abc import Iterator

from ssdsl.model.analyse import Analysis, Reading
from ssdsl.model.call import Call
from ssdsl.model.capture import Capture
from ssdsl.model.graph import Origin
from ssdsl.model.ops.attention import softmax
from ssdsl.model.ops.elementwise import elementwise
from ssdsl.model.ops.op import regroup
from ssdsl.model.ops.registry import row
from ssdsl.model.source import Model

ROLES = ("vocab", "hidden", "head_dim", "heads")  # letters of the rule table, the strongest first


def name_dims(model: Model, capture: Capture, found: Analysis) -> dict[int, str]:
    """The name of every class of dimensions, by class. Several classes may share one name (one per layer, say)."""
    names: dict[int, str] = {}
    for leaves, name in _candidates(model, capture, found):
        for depth, leaf in enumerate(leaves):
            names.setdefault(leaf, name if depth == 0 else f"{name}_inner{depth}")
    return names


def _candidates(model: Model, capture: Capture, found: Analysis) -> Iterator[tuple[list[int], str]]:
    """Leaves and a name for them, in falling priority."""
    for name, axes in model.axes.items():
        for factors, axis in zip(found.axes.get(name, ()), axes, strict=False):
            yield found.factors.leaves(factors), axis
    computed = {o for reading in found.readings for o in reading.call.outputs} | set(model.axes)
    for role in ROLES:
        for reading in found.readings:
            if (slot := reading.slots.get(role)) and not (role == "heads" and _is_softmax(reading.call)):
                looked_up = role == "vocab" and reading.call.target.name() == "aten::embedding"
                table = looked_up and reading.call.refs()[1] not in computed
                yield found.factors.leaves(slot.factors), "positions" if table else role
    for reading in found.readings:
        if _is_softmax(reading.call) and "heads" in reading.slots:
            yield found.factors.leaves(reading.slots["heads"].factors), "heads"
    for reading in found.readings:
        if slot := reading.slots.get("value_dim"):
            yield found.factors.leaves(slot.factors), "head_dim"
    for leaf in _between_projections(capture, found):
        yield [leaf], "ffn"
    for name in (n for n, o in capture.origins.items() if o is Origin.WEIGHT):
        for at, factors in enumerate(found.axes[name]):
            yield found.factors.leaves(factors), f"{name}.{at}"
    for call in capture.calls:
        for output in (o for o in call.outputs if o in found.axes):
            for factors in found.axes[output]:
                yield found.factors.leaves(factors), f"{introducer(call)}.out"

    for name in capture.origins:
        for at, factors in enumerate(found.axes[name]):
            yield found.factors.leaves(factors), f"{name}.{at}"


def _is_softmax(call: Call) -> bool:
    return row(call).dims is softmax


def introducer(call: Call) -> str:
    return call.path or call.name


def _between_projections(capture: Capture, found: Analysis) -> Iterator[int]:
    """Dimensions that go out of one projection, through elementwise operators, into the contraction of another."""
    out: set[int] = set()
    contracted: set[int] = set()
    elsewhere: set[int] = set()
    order: dict[int, None] = {}
    for reading in found.readings:
        carried = _leaves(reading, reading.outputs, found)
        given = _leaves(reading, reading.inputs, found)
        op = row(reading.call)
        if op.projects and _projects(reading.call, capture):
            contracted |= given - carried
            out |= carried & _leaves(reading, reading.inputs[1:], found)
            order.update(dict.fromkeys(sorted(given - carried)))
        elif op.dims is not elementwise and op.dims is not regroup:
            elsewhere |= given | carried
    return (leaf for leaf in order if leaf in out and leaf in contracted and leaf not in elsewhere)


def _projects(call: Call, capture: Capture) -> bool:
    """Whether the call applies weights to one activation."""
    return sum(capture.origins.get(r) is not Origin.WEIGHT for r in call.refs()) == 1


def _leaves(reading: Reading, operands: list[tuple[str, list[list[str]], bool]], found: Analysis) -> set[int]:
    return {
        leaf
        for _, axes, _ in operands
        for axis in axes
        for slot in axis
        for leaf in found.factors.leaves(reading.slots[slot].factors)
    }
