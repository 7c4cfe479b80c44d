"""The parallelism that systems with fixed strategies share, and the plan that says it.

Megatron-LM, torchtitan and others differ in their words. What they can say is the same: widths of data, tensor, context
and expert parallelism, stages with a schedule, state in parts, layers that are computed again.
"""

from collections.abc import Iterator
from enum import StrEnum

from ssdsl.record import Record

ATTENTION = "model.scaled_dot_product_attention"


class Meeting(StrEnum):
    """What attention does about a sequence that is cut over devices."""

    RING = "ring"  # keys and values go around
    GATHER = "gather"  # each device has all keys and values
    HEADS = "heads"  # devices exchange heads for positions (Ulysses)


class Keeps(StrEnum):
    """What of the state of training lies in parts over the replicas; each also has those before it."""

    OPTIMIZER = "optimizer"
    GRADS = "grads"
    WEIGHTS = "weights"


class Net(Record):
    """What a plan has to know of its model: the value of `--model`, and the paths of its layers, of its experts and of
    the first module behind the layers, None where they are not known, not needed, or it has none."""

    model: str | None = None
    layers: str | None = None
    experts: str | None = None
    behind: str | None = None


class Widths(Record):
    """Widths of one are no axes of the plan.

    data: replicas that hold all of what `state` leaves whole; the batch is cut over them. Of these, `shards` is the
        number among which `state` is in parts; 0 for all.
    tensor, sequence: devices of a layer; whether what lies between its products is cut along the sequence.
    context, attention: parts of the sequence, and what attention does about them.
    experts: devices among which experts are divided; they are some of those that hold replicas, parts of sequences and,
        if `expert_tensor` is less than `tensor`, of layers. expert_tensor: devices of an expert; 0 for `tensor`.
    stages, chunks: devices of the pipeline, and stages on each; `schedule` is a function of `stdlib/pipeline.ssp`.
        `v_shaped` stages go down the devices and back.
    before: the number of the layer with which each stage but the first begins; None for as many layers in each. The
        number of layers stands for what follows them.
    table: the file beside the plan that has `schedule`, a function of the stages alone, and `rank`, the device of each
        stage; "" for a function of `stdlib/pipeline.ssp`. Its stages and micro-batches are no params.
    micro: micro-batches; 0 where the source does not say.
    recompute: lists of operators, each in the language. to_host: what lies in the memory of the host, in the language.
    replicas_first: devices of a pipeline are nearer to each other than replicas. is_open: the source does not say how
        many replicas there are: the plan has a param for them, also for one.
    """

    data: int = 1
    shards: int = 0
    tensor: int = 1
    sequence: bool = False
    context: int = 1
    attention: Meeting = Meeting.RING
    experts: int = 1
    expert_tensor: int = 0
    stages: int = 1
    chunks: int = 1
    schedule: str = "one_f_one_b"
    v_shaped: bool = False
    before: tuple[int, ...] | None = None
    table: str = ""
    micro: int = 1
    state: Keeps | None = None
    recompute: tuple[str, ...] = ()
    to_host: tuple[str, ...] = ()
    replicas_first: bool = False
    is_open: bool = False

    @property
    def are_zigzag(self) -> bool:
        """Whether a device has a chunk from either end of the sequence, so that all compute as much of causal
        attention. Where heads are exchanged, it has a run."""
        return self.context > 1 and self.attention is not Meeting.HEADS


class PlanLine(Record):
    """A line of a plan, and the fields of `Widths` that it says."""

    text: str
    says: tuple[str, ...] = ()


class PlanLines(Record):
    """The lines of a plan, in order."""

    lines: tuple[PlanLine, ...]

    @property
    def text(self) -> str:
        return "".join(f"{line.text}\n" for line in self.lines)

    def saying(self, *names: str) -> str:
        """The statements that say these fields of `Widths`, in one line; "" for none."""
        return "; ".join(line.text.strip() for line in self.lines if {*names} & {*line.says})


def plan_of(widths: Widths, net: Net, comments: tuple[str, ...]) -> PlanLines:
    """The plan that says these widths, for a model.

    >>> print(plan_of(Widths(data=2, tensor=4), Net("gpt"), ("Two replicas.",)).text)
    # for: --model gpt
    # Two replicas.
    <BLANKLINE>
    use tensor_parallel: tensor_parallel
    <BLANKLINE>
    param D = 2 "replicas"
    param T = 4 "tensor-parallel width"
    <BLANKLINE>
    mesh gpus(dp = D, tp = T)
    <BLANKLINE>
    split model by batch into dp
    tensor_parallel(model)
    <BLANKLINE>
    assign model to gpus
    <BLANKLINE>
    """
    header = [PlanLine(f"# for: --model {net.model}")] if net.model else []
    parts = (
        [*header, *(PlanLine(f"# {comment}".rstrip()) for comment in comments)],
        _imports(widths),
        _params(widths),
        [*_mesh(widths)],
        [*_experts(widths, net)],
        [*_operators(widths, net)],
        [*_state(widths)],
        [PlanLine(f"recompute {what}", ("recompute",)) for what in widths.recompute],
        [*_places(widths, net)],
        [PlanLine(f"assign {what} to host", ("to_host",)) for what in widths.to_host],
    )
    blocks = [part for part in parts if part]
    return PlanLines(tuple(line for n, block in enumerate(blocks) for line in ([PlanLine("")] if n else []) + [*block]))


# -- the axes ----------------------------------------------------------------------------------------------------------


class _Axis(Record):
    """An axis of the mesh with its number of devices, the param that has it, and the fields that it says."""

    name: str
    param: str
    size: int
    help: str
    says: tuple[str, ...]


def _axes(widths: Widths) -> list[_Axis]:
    """The axes of more than one device; the last one has neighbours."""
    shards = widths.shards or widths.data
    among = _among_replicas(widths)
    axes = (
        _Axis(
            "pp",
            str(widths.stages) if widths.table else "S",
            widths.stages,
            "pipeline stages" if widths.chunks == 1 else "devices of the pipeline",
            ("stages",),
        ),
        _Axis("rep", "R", widths.data // shards, "copies of what lies in parts", ("data", "shards")),
        _Axis("dp", "D", shards // among, "replicas", ("data", "shards")),
        _Axis("ep", "E", among, "replicas that divide the experts", ("data", "experts")),
        _Axis("cp", "C", widths.context, "parts of the sequence", ("context",)),
        _Axis("tp", "T", widths.tensor, "tensor-parallel width", ("tensor",)),
    )
    pipeline, *others = axes
    ordered = [*others[:2], pipeline, *others[2:]] if widths.replicas_first else axes
    return [axis for axis in ordered if axis.size > 1 or (axis.name == "dp" and widths.is_open)]


def _over_tensor(widths: Widths) -> bool:
    """Whether experts are divided over the devices of a layer, too."""
    return widths.experts > 1 and 0 < widths.expert_tensor < widths.tensor


def _inside_replicas(widths: Widths) -> int:
    """The number of devices of a replica among which experts are divided: of a sequence, and perhaps of a layer."""
    return (widths.tensor if _over_tensor(widths) else 1) * widths.context


def _among_replicas(widths: Widths) -> int:
    """The number of replicas among which experts are divided: what devices of a layer and of a sequence leave."""
    return max(1, widths.experts // _inside_replicas(widths))


def problem(widths: Widths) -> str:
    """The reason why no mesh has these widths, or ""."""
    shards, among, inside = widths.shards or widths.data, _among_replicas(widths), _inside_replicas(widths)
    if widths.data % shards:
        return f"{shards} parts of the state do not divide {widths.data} replicas"
    if 1 < widths.expert_tensor < widths.tensor or widths.expert_tensor > widths.tensor:
        return f"experts are as wide as layers or of one device, not {widths.expert_tensor} of {widths.tensor} devices"
    if widths.experts > 1 and among * inside != widths.experts:
        return f"experts are divided over whole axes: {widths.experts} is no multiple of {inside}"
    if shards % among:
        return f"{among} replicas that divide the experts are no part of {shards}"
    return ""


def _names(widths: Widths, *names: str) -> list[str]:
    """Those of these axes that the mesh has."""
    return [axis.name for axis in _axes(widths) if axis.name in names]


# -- the blocks --------------------------------------------------------------------------------------------------------


def _imports(widths: Widths) -> list[PlanLine]:
    found = []
    if widths.table:
        found.append(PlanLine(f'use "{widths.table}": {widths.schedule}, rank', ("schedule",)))
    elif widths.stages > 1:
        found.append(PlanLine(f"use pipeline: {widths.schedule}"))
    if widths.tensor > 1:
        found.append(PlanLine("use tensor_parallel: tensor_parallel"))
    both = [
        *(["sequence_parallel"] if widths.tensor > 1 and widths.sequence else []),
        *(["zigzag"] if widths.are_zigzag else []),
    ]
    return found + ([PlanLine(f"use sequence_parallel: {', '.join(both)}")] if both else [])


def _params(widths: Widths) -> list[PlanLine]:
    named = [axis for axis in _axes(widths) if not axis.param.isdigit()]
    found = [PlanLine(f'param {axis.param} = {axis.size} "{axis.help}"') for axis in named]
    if widths.table:
        return found
    if widths.stages > 1 and widths.chunks > 1 and not widths.v_shaped:
        found.append(PlanLine(f'param V = {widths.chunks} "stages on a device"', ("chunks",)))
    if widths.micro > 1 or widths.stages > 1:
        found.append(PlanLine(f'param M = {widths.micro} "micro-batches"', ("micro",)))
    return found


def _mesh(widths: Widths) -> Iterator[PlanLine]:
    axes = _axes(widths)
    says = tuple(field for axis in axes for field in axis.says)
    yield PlanLine(f"mesh gpus({', '.join(f'{axis.name} = {axis.param}' for axis in axes) or 'dp = 1'})", says)


def _experts(widths: Widths, net: Net) -> Iterator[PlanLine]:
    if net.experts is not None and widths.experts > 1:
        yield PlanLine(f'let experts = model["{net.experts}"]')
        yield PlanLine("let others = model - experts")


def _operators(widths: Widths, net: Net) -> Iterator[PlanLine]:
    """Yields what is cut over devices, and the batch in time."""
    apart = net.experts is not None and widths.experts > 1
    others = "others" if apart else "model"
    parts = widths.micro if widths.table else "M"
    batch = [*_names(widths, "rep", "dp"), *([f"m = {parts}"] if widths.micro > 1 or widths.stages > 1 else [])]
    if batch:
        yield PlanLine(f"split model by batch into {', '.join(batch)}", ("data", "micro", "shards"))
    inner = _names(widths, "ep", "cp")
    if "ep" in inner:
        yield PlanLine(f"split {others} by batch into ep", ("data", "experts"))
    if "cp" in inner:
        yield from _context(widths, others)
    if widths.tensor > 1:
        yield PlanLine(f"tensor_parallel({others})", ("tensor",))
        if widths.sequence:
            yield PlanLine(f"sequence_parallel({others})", ("sequence",))
    if apart:
        for axis in [*inner, *(["tp"] if _over_tensor(widths) else [])]:
            yield PlanLine(f"split experts by experts into {axis}", ("experts",))
        if widths.tensor > 1 and not _over_tensor(widths):
            yield PlanLine("split experts by ffn into tp", ("tensor", "expert_tensor"))


def _context(widths: Widths, others: str) -> Iterator[PlanLine]:
    """Yields the parts of the sequence, and how attention gets what it needs of others."""
    if widths.attention is Meeting.HEADS:
        yield PlanLine(f"split {ATTENTION} by heads into cp", ("context", "attention"))
        yield PlanLine(f"split {others} - {ATTENTION} by seq into cp", ("context", "attention"))
        return
    yield PlanLine(f"split {others} by seq into cp parts zigzag(C)", ("context", "attention"))
    if widths.attention is Meeting.RING:
        yield PlanLine(f"split {ATTENTION} by seq.keys into cp parts zigzag(C)", ("attention",))


def _state(widths: Widths) -> Iterator[PlanLine]:
    over = _names(widths, "dp", "ep", "cp")
    if widths.state is not None and over:
        yield PlanLine(f"split model.{widths.state} by row into {', '.join(over)}", ("state", "shards"))


def _places(widths: Widths, net: Net) -> Iterator[PlanLine]:
    if widths.stages == 1:
        yield PlanLine("assign model to gpus")
        return
    count, place = "S", "s"
    if widths.table:
        count, place = "len(rank)", "rank[s]"
    elif widths.v_shaped:
        count, place = "2 * S", "min(s, 2 * S - 1 - s)"
    elif widths.chunks > 1:
        count, place = "S * V", "s % S"
    yield from _cut(widths, net, count)
    yield PlanLine("")
    yield PlanLine(f"assign stage[s] to gpus[pp = {place}] for s in 0..{count}", ("stages", "chunks"))
    if widths.table:
        yield PlanLine(f"{widths.schedule}(stage)", ("schedule",))
        return
    last = ", V" if widths.schedule == "interleaved" else ""
    yield PlanLine(f"{widths.schedule}(stage, M{last})", ("schedule",))


def _cut(widths: Widths, net: Net, count: str) -> Iterator[PlanLine]:
    """Yields the stages, with as many layers in each, or as the source says."""
    says = ("stages", "chunks", "before")
    if net.layers is None:
        yield PlanLine(f"let stage = balance(model, {count})", says)
        return
    behind = f' + [model["{net.behind}"]]' if net.behind is not None and widths.before is not None else ""
    yield PlanLine(f'let layers = each("{net.layers}"){behind}')
    if widths.before is None:
        parts = f"({count})" if " " in count else count
        first = f"[layers[len(layers) * s // {parts}] for s in 1..{count}]"
        yield PlanLine(f"let stage = cut(model, {count}, before = {first})", says)
        return
    yield PlanLine(f"let first = {[*widths.before]}  # the layer with which each stage but the first begins")
    yield PlanLine(f"let stage = cut(model, {count}, before = [layers[n] for n in first])", says)
