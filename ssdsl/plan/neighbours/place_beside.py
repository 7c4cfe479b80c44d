"""Places operators that a plan's paths leave out beside their neighbours.

A residual, an activation or a division in the forward of the model itself is in no module that a path such as `h.3`
names. If no statement assigns such an operator, it goes where the last of its operands is made; without such an
operand, where its result is used. Everything that the plan says of that neighbour also holds for it.

An operand that was put beside another operator itself is as late as that one: in `v - r[:, None]`, the axis that `r`
gets here does not make it later than `v`.
"""

from ssdsl.model.graph import Operator
from ssdsl.plan.errors.place import PlacedBeside
from ssdsl.plan.facts import Facts
from ssdsl.plan.model_index import ModelIndex
from ssdsl.plan.plan import NOTHING, OpPlan
from ssdsl.record import replace
from ssdsl.text.diagnostic import Diagnostic
from ssdsl.text.source import Source


def place_beside(facts: Facts, model: ModelIndex, source: Source | None = None) -> list[Diagnostic]:
    """Places the unassigned operators of modules that have submodules, and returns a warning that says so, of the plan
    `source`."""
    if all(record.place is not None for record in facts.distinct(model.numbers(model.compute)).values()):
        return []
    parents = model.graph.parents
    may = (op for op in model.ordered(model.compute) if facts.of(op.name).place is None)
    left = [op for op in may if op.path in parents or op.name in facts.of_all_parts]
    found: dict[str, int] = {}  # the operators that got a place, in the order in which they got it: how late each is

    def late(name: str) -> tuple[int, int]:
        at = model.position[name]
        return found.get(name, at), at

    for op in left:
        given = [maker.name for maker in model.graph.makers_of(op)]
        _place(facts, model, found, op, sorted(given, key=late, reverse=True))
    for op in reversed(left):
        if op.name not in found:
            users = [reader.name for reader in model.graph.readers_of(op)]
            _place(facts, model, found, op, sorted(users, key=late))
    for op in left:
        if op.name not in found and op.name in facts.of_all_parts:  # a counter that nothing else reads
            others = (other.name for other in model.ordered(model.compute) if other.path == op.path)
            _place(facts, model, found, op, [*others])
    found = {name: at for name, at in found.items() if name not in facts.of_all_parts}
    return [_warning(facts, model, found, source)] if found else []


def _place(facts: Facts, model: ModelIndex, found: dict[str, int], op: Operator, neighbours: list[str]) -> None:
    """Puts an operator where the first of its neighbours with a place is, and adds it to `found`. Without such a
    neighbour it does nothing."""
    host = next((n for n in neighbours if facts.of(n).place is not None), None)
    if host is not None:
        found[op.name] = found.get(host, model.position[host])
        facts.operators.at[model.position[op.name]] = beside(
            model.operators[host], facts.of(host), op, facts.of(op.name)
        )


def _warning(facts: Facts, model: ModelIndex, found: dict[str, int], source: Source | None) -> PlacedBeside:
    """One warning for all of them; it names the modules, the kinds of operators and the devices of the first."""
    placed = model.ordered(found)
    first = placed[0]
    modules = tuple(dict.fromkeys(op.module for op in placed))
    kinds = tuple(dict.fromkeys(op.kind for op in placed))
    devices = str(facts.of(first.name).place)
    return PlacedBeside(None, len(placed), modules, kinds, first.own_path, devices, source)


def beside(
    host: Operator, record: OpPlan, operator: Operator, own: OpPlan = NOTHING, *, combines: bool = True
) -> OpPlan:
    """The record (`OpPlan`) of an operator that is put beside `host`; `record` is the host's.

    It is cut as the host is, along the dimensions that both have. Dimensions that only a kernel can combine are left
    whole unless `combines`. Facts of the operator itself (`own`) come first.
    """
    indices, named = list(own.indices), {index.name for index in own.indices}
    for index in record.indices:
        cls = host.dims[index.dim].cls  # equal for the same dimension of two operators
        dims = (k for k, d in enumerate(operator.dims) if d.cls == cls and not d.fixed and (combines or not d.combined))
        at = next(dims, None)
        if at is not None and index.name not in named:
            indices.append(replace(index, dim=at, also=None))
    return OpPlan(
        place=record.place,
        indices=tuple(indices),
        whole=own.whole,
        checkpoint=own.checkpoint or record.checkpoint,
        within=own.within or record.within,
        regathers=own.regathers or record.regathers,
        ahead=own.ahead or record.ahead,
        sets=own.sets | record.sets,
    )
