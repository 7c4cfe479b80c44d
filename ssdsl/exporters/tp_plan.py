"""The `tp_plan` of transformers that says what a compiled plan says: a style for each module.

The weight of `q_proj` is [heads 4 · head_dim 8, hidden 32], and its part has two heads: `colwise`. That of `o_proj` is
[hidden 32, heads 4 · head_dim 8], and what it reads is a part already: `rowwise`; if not, `rowwise_split_input`. Styles
are taken from the layouts of the program. Then the plan of styles is read as transformers reads it, and compared with
the program: every weight has the same part, and every gradient is complete.
"""

from collections.abc import Iterator, Mapping

from ssdsl.exporters.errors import NoStyle, NotTensorParallel
from ssdsl.ir.layout import Shard
from ssdsl.ir.param import Param
from ssdsl.ir.program import Program
from ssdsl.model.graph import Graph, Operator
from ssdsl.record import Record
from ssdsl.text.diagnostic import PlanError
from ssdsl.tp_plans.entries import ModelPlans, PlanKind
from ssdsl.tp_plans.gradients import Meaning, Sum, meaning
from ssdsl.tp_plans.layouts import LocalKind, LocalShare, layouts
from ssdsl.tp_plans.matching import module_of, wildcard

UNSPLIT = "split it as its neighbours are, or leave it whole"


class TpPlan(Record):
    """Styles by the names of modules and weights, the number of devices, and the modules of which the plan cuts
    operators that transformers computes whole."""

    styles: Mapping[str, str]
    devices: int
    whole: tuple[str, ...]


def tp_plan_of(program: Program, plans: ModelPlans) -> TpPlan:
    """The plan of styles for a program of a model with these plans. Raises PlanError."""
    graph = program.plan.graph
    axis, devices = _axis(program)
    cut = dict(_cut_weights(program, axis))
    styles = _alike(graph, _first_styles(graph, cut, axis, program))
    styles = _with_inputs(graph, styles, devices)
    styles = _with_sums(graph, styles, devices)
    found = meaning(graph, styles, devices)
    _check(found, cut, styles)
    rest = {name: "replicate" for name in plans.merged[PlanKind.TENSOR] if name not in styles and name in plans.names}
    return TpPlan(dict(sorted({**styles, **rest}.items())), devices, tuple(_whole(program, axis, found)))


# -- what the program says ---------------------------------------------------------------------------------------------


def _axis(program: Program) -> tuple[str, int]:
    """The axis along which weights are cut, and its devices. Raises PlanError if there is not one such axis."""
    meshes = {param.submesh for param in program.params}
    if len(meshes) > 1:
        reason, change = "weights lie on several sets of devices", "assign all of the model to one mesh"
        raise PlanError(NotTensorParallel(None, reason, change))
    sizes = {name: size for mesh in meshes for name, size in mesh.axes}
    found = {axis for param in program.params for axis in _axes_of(param)}
    cut = [axis for axis in sizes if axis in found]
    if len(cut) != 1:
        reason = f"weights are cut along {', '.join(cut)}" if cut else "no weight is cut"
        change = "cut heads, ffn and vocab into one axis, as `tensor_parallel(model)` does"
        raise PlanError(NotTensorParallel(None, reason, change))
    (axis,) = cut
    return axis, sizes[axis]


def _axes_of(param: Param) -> Iterator[str]:
    for (axis, size), place in zip(param.submesh.axes, param.layout.places, strict=True):
        if isinstance(place, Shard) and size > 1:
            yield axis


def _cut_weights(program: Program, axis: str) -> Iterator[tuple[str, LocalShare]]:
    """Yields each weight that is cut along the axis, with the factor that is. Raises PlanError for parts that are not
    equal runs of it."""
    for param in program.params:
        for (name, _), place in zip(param.submesh.axes, param.layout.places, strict=True):
            if name != axis or not isinstance(place, Shard):
                continue
            if place.digit.at is not None or place.digit.period != param.shape.factors[place.factor]:
                raise PlanError(NoStyle(None, param.weight, "its parts are not equal runs of a dimension", UNSPLIT))
            dim = param.shape.axis_of(place.factor)
            yield (
                param.weight,
                LocalShare(LocalKind.CUT, dim, place.factor - sum(len(a) for a in param.shape.axes[:dim])),
            )


# -- styles ------------------------------------------------------------------------------------------------------------


def _first_styles(
    graph: Graph, cut: Mapping[str, LocalShare], axis: str, program: Program
) -> Iterator[tuple[str, str]]:
    """Yields names with styles: of each weight that is cut, its module's, or its own and its module's."""
    for weight, lies in cut.items():
        module, _, name = weight.rpartition(".")
        readers = graph.readers.get(weight, ())
        rank = len(graph.values[weight].shape)
        if any(reader.kind == "embedding" for reader in readers) and rank == 2:
            yield module, "embedding_rowwise" if lies.axis == 0 else "embedding_colwise"
        elif name == "weight" and rank == 2 and _is_linear(readers):
            yield module, _linear(graph, weight, lies, readers, axis, program)
        elif name == "bias" and f"{module}.weight" in cut:
            continue
        elif rank == 3 or (rank == 2 and name not in ("weight", "bias")):  # of all experts together
            yield weight, _expert(graph, weight, lies)
            yield module, "moe_tp_experts"
        elif rank == 1 and name != "bias":
            yield weight, "colwise"
            yield module, "local_params"
        else:
            kinds = ", ".join(dict.fromkeys(f"`{reader.kind}`" for reader in readers))
            raise PlanError(NoStyle(None, weight, f"{kinds} reads a part of it, which is no linear layer", UNSPLIT))
    for weight in cut:  # the head with the weight of the embedding
        readers = graph.readers.get(weight, ())
        for reader in readers if any(r.kind == "embedding" for r in readers) else ():
            if _is_linear((reader,)):
                yield module_of(reader.path), _linear(graph, weight, cut[weight], (reader,), axis, program)


def _is_linear(readers: tuple[Operator, ...]) -> bool:
    return bool(readers) and all(reader.kind in ("linear", "t", "transpose", "reshape") for reader in readers)


def _linear(
    graph: Graph, weight: str, lies: LocalShare, readers: tuple[Operator, ...], axis: str, program: Program
) -> str:
    """The style of a linear layer: whether its results are cut, and gathered for what reads them; or what it reads."""
    if lies.axis == 1:
        return "rowwise"
    sizes = graph.values[weight].sizes[0]
    if lies.factor > 0 and sizes[0] > 1:
        if lies.factor == 1 and sizes[0] == 2:
            return "packed_colwise"
        raise PlanError(
            NoStyle(None, weight, f"its parts are strided in {sizes[0]} packed pieces; styles know two", UNSPLIT)
        )
    return "colwise" if _stays_cut(graph, readers, axis, program) else "colwise_gather_output"


def _stays_cut(graph: Graph, makers: tuple[Operator, ...], axis: str, program: Program) -> bool:
    """Whether all that reads the results of operators works on parts of them, by itself, up to a sum over the cut
    dimension."""
    seen, waiting = set[str](), [*makers]
    while waiting:
        maker = waiting.pop()
        for reader in graph.readers_of(maker):
            if reader.name in seen:
                continue
            seen.add(reader.name)
            dims = [index.dim for index in program.plan.of(reader.name).indices if index.name == axis]
            if not dims or any(reader.dims[dim].combined for dim in dims):
                return False
            if all(output.carries(dim) for output in reader.outputs for dim in dims):
                waiting.append(reader)
            elif not reader.row.projects and not any(i.value in graph.alone for i in reader.inputs):
                return False  # a sum over parts between modules, as of a norm over all heads
    return True


def _expert(graph: Graph, weight: str, lies: LocalShare) -> str:
    if lies.axis == 0:
        change = "cut them by ffn: `split OPS by ffn into tp`"
        raise PlanError(NoStyle(None, weight, "experts are divided: that is an `ep_plan`", change))
    value = graph.values[weight]
    is_packed = lies.factor == 1 and value.sizes[lies.axis][0] == 2
    return ("packed_" if is_packed else "") + ("rowwise" if lies.axis == len(value.shape) - 1 else "colwise")


def _alike(graph: Graph, found: Iterator[tuple[str, str]]) -> dict[str, str]:
    """The styles by names with `*` for numbers: a plan of transformers cannot say other things of other layers."""
    styles, modules = dict[str, str](), dict[str, set[str]]()
    for name, style in found:
        key = wildcard(name)
        if styles.setdefault(key, style) != style:
            reason = f"layers differ: {styles[key]}, {style}; an entry names all layers"
            raise PlanError(NoStyle(None, name, reason, "cut all layers alike"))
        modules.setdefault(key, set()).add(name)
    return styles


def _with_inputs(graph: Graph, styles: dict[str, str], devices: int) -> dict[str, str]:
    """The styles with `rowwise_split_input` where a module reads what is whole."""
    found = layouts(graph, styles, devices)
    changed = dict(styles)
    for operator in graph.computing:
        key = wildcard(module_of(operator.path))
        if styles.get(key) != "rowwise":
            continue
        for operand in operator.inputs:
            outside = found.crossed(operand.value, operator)[1]
            lies = found.made.get(operand.value)
            if outside and lies is not None and found.read(operand, operator).kind is LocalKind.WHOLE:
                changed[key] = "rowwise_split_input"
    return changed


def _with_sums(graph: Graph, styles: dict[str, str], devices: int) -> dict[str, str]:
    """The styles with those that sum gradients of weights that are whole."""
    found = meaning(graph, styles, devices)
    changed = dict(styles)
    for weight, by in found.sums.items():
        module = wildcard(weight.rpartition(".")[0])
        if by is Sum.MISSING and module not in styles:
            changed[module] = "replicated_with_grad_allreduce"
    for weight, by in found.sums.items():
        module = wildcard(weight.rpartition(".")[0])
        if by is Sum.IN_PART and module not in changed:
            tried = {**changed, module: "mla_kv_a_proj"}
            if meaning(graph, tried, devices).sums[weight] is Sum.RIGHT:
                return _with_sums(graph, tried, devices)
    return changed


def _check(found: Meaning, cut: Mapping[str, LocalShare], styles: Mapping[str, str]) -> None:
    """Raises PlanError if transformers makes something else of these styles than the program does."""
    for mistake in found.forward:
        raise PlanError(NoStyle(None, mistake.module, mistake.what, UNSPLIT))
    somewhere = {wildcard(weight) for weight in cut}
    for weight, lies in found.weights.items():
        if lies == cut.get(weight, lies if lies.kind is LocalKind.WHOLE else None):
            continue
        reason = f"with the styles for `{wildcard(weight)}` other parts of it are cut"
        if weight not in cut and wildcard(weight) in somewhere:
            reason = "the plan cuts it in other layers; an entry names all layers"
        raise PlanError(NoStyle(None, weight, reason, "cut all layers alike"))
    for weight, by in found.sums.items():
        if by is not Sum.RIGHT:
            raise PlanError(NoStyle(None, weight, f"its gradient would be summed wrongly: {by}", UNSPLIT))


def _whole(program: Program, axis: str, found: Meaning) -> list[str]:
    """The modules of which the plan cuts operators that each device computes whole with these styles."""
    graph = program.plan.graph
    cut = (o for o in graph.computing if any(i.name == axis for i in program.plan.of(o.name).indices))
    return [
        *dict.fromkeys(
            wildcard(o.module) for o in cut if o.name not in found.cuts and o.outputs[0].value in graph.learning
        )
    ]
