"""The widths that flags of Megatron ask for, and what became of each of these flags."""

from collections.abc import Mapping

from ssdsl.importers.megatron.arguments import FlagOutcome, became, refused, said, silent
from ssdsl.importers.megatron.memory import host_of, recompute_of, state_of
from ssdsl.importers.megatron.model import DROPOUT
from ssdsl.importers.megatron.request import ParallelRequest, wrong
from ssdsl.importers.megatron.stages import cuts_of, schedule_of
from ssdsl.importers.widths import Meeting, Widths, problem
from ssdsl.record import Record, replace

MEETINGS = {"p2p": Meeting.RING, "all_gather": Meeting.GATHER, "a2a": Meeting.HEADS}
FSDP = ("use-megatron-fsdp", "use-custom-fsdp", "custom-fsdp")
MESH = "MESH"  # of `FlagOutcome.says`: the line of the mesh
GATHERED = "Dropout in attention needs all keys at once: they are gathered, where Megatron sends them around."
OPEN = "The number of devices is not in the source: --set D=4 for 4 replicas, and M for as many micro-batches less."
IN_LOOP = "in your own loop: the engine takes batches of any size; `ssdsl run` has one"


class Parallel(Record):
    """Widths, and what became of the flags that they come from."""

    widths: Widths
    verdicts: Mapping[str, FlagOutcome]
    ends_behind: bool  # whether a stage begins behind all layers
    comments: tuple[str, ...] = ()


def parallel_of(asked: ParallelRequest) -> Parallel:
    """The widths. Raises PlanError."""
    sizes = asked.sizes
    is_open = not asked.world or not sizes.is_divided
    widths = Widths(sizes.data, tensor=sizes.tensor, context=sizes.context, stages=sizes.stages, is_open=is_open)
    verdicts: dict[str, FlagOutcome] = {}
    for rule in RULES:
        widths = rule(asked, widths, verdicts)
    needs_all = widths.context > 1 and widths.attention is Meeting.RING and _has_dropout(asked)
    if needs_all:
        widths = replace(widths, attention=Meeting.GATHER)
        verdicts["cp-comm-type"] = refused("dropout in attention needs all keys at once: they are gathered")
    ends_behind = widths.before is not None and asked.layers in widths.before
    comments = ((OPEN,) if not asked.world else ()) + ((GATHERED,) if needs_all else ())
    return Parallel(widths, verdicts, ends_behind, comments)


def _has_dropout(asked: ParallelRequest) -> bool:
    """Whether probabilities of attention are dropped."""
    kind = asked.kind
    share = asked.args.share("attention-dropout", default=DROPOUT)
    return kind is not None and "attention" in kind.values("dropout") and share > 0


def _devices(asked: ParallelRequest, widths: Widths, verdicts: dict[str, FlagOutcome]) -> Widths:
    """How many devices there are: what widths leave of them are replicas."""
    args, sizes, world = asked.args, asked.sizes, asked.world
    inner = sizes.tensor * sizes.stages * sizes.context
    if not world:
        reason = f"this number of devices is not in the source: {sizes.data} replicas; `--set D=...` for others"
        own = refused(reason)
    elif not sizes.is_divided:
        own = refused(
            f"{world} devices are no multiple of tensor x pipeline x context = {inner}, where Megatron stops: the plan "
            f"is for {inner}"
        )
    else:
        own = said(MESH)
    for flag in ("world-size", "DEVICES"):
        verdicts[flag] = own
    for flag, size in (
        ("tensor-model-parallel-size", sizes.tensor),
        ("pipeline-model-parallel-size", sizes.stages),
        ("context-parallel-size", sizes.context),
        ("ds-sequence-parallel-size", sizes.context),
        ("expert-model-parallel-size", args.number("expert-model-parallel-size", default=1)),
        ("moe-expert-parallel-size", args.number("moe-expert-parallel-size", default=1)),
    ):
        if size == 1:
            verdicts[flag] = silent("1: what it is without this flag")
    verdicts["no-pipeline-parallel"] = (
        silent("there is one stage")
        if sizes.stages == 1
        else refused("ignored: `--pipeline-model-parallel-size` says otherwise, where Megatron-DeepSpeed stops")
    )
    verdicts["model-parallel-size"] = refused("Megatron stops here: it is `--tensor-model-parallel-size` now")
    verdicts["deepspeed"] = silent("DeepSpeed's engine: what it is told stands in its config")
    verdicts["DDP-impl"] = silent("how gradients are reduced: always in buckets, beside computation")
    verdicts["force-ds-sequence-parallel"] = silent("which code computes this")
    return widths


def _batches(asked: ParallelRequest, widths: Widths, verdicts: dict[str, FlagOutcome]) -> Widths:
    """Micro-batches: what replicas and micro-batches leave of the batch."""
    args, sizes, world = asked.args, asked.sizes, asked.world
    each = sizes.micro_batch * sizes.data
    has_batch = args.has("global-batch-size", "step-batch-size-schedule")
    if sizes.batch % each:
        if has_batch and world and sizes.is_divided:
            raise wrong(
                args,
                "global-batch-size",
                f"a batch of {sizes.batch} is no multiple of {each}",
                f"{sizes.data} replicas take {sizes.micro_batch} of it at a time",
                f"give a multiple of {each}, or another number of devices",
            )
        micro = 1
    else:
        micro = sizes.batch // each
    own = f"of `--model`: batch={sizes.batch}"
    verdicts["global-batch-size"] = became(own)
    verdicts["micro-batch-size"] = verdicts["batch-size"] = (
        said("micro") if micro > 1 or sizes.stages > 1 else became(f"one micro-batch, {own}")
    )
    verdicts["rampup-batch-size"] = refused(IN_LOOP)
    verdicts["step-batch-size-schedule"] = refused(f"{IN_LOOP}, here the last: {sizes.batch}")
    return replace(widths, micro=micro)


def _tensor(asked: ParallelRequest, widths: Widths, verdicts: dict[str, FlagOutcome]) -> Widths:
    args, sizes = asked.args, asked.sizes
    verdicts.setdefault("tensor-model-parallel-size", said("tensor"))
    wants = args.has("sequence-parallel")
    verdicts["sequence-parallel"] = (
        said("sequence") if sizes.tensor > 1 else refused("ignored without a word: layers are on one device")
    )
    overlap = "beside operators of the layer that do not need the result; not yet beside the product itself"
    verdicts["tp-comm-overlap"] = (
        silent(f"always so, {overlap}")
        if wants and sizes.tensor > 1
        else refused("needs sequence parallelism, without which Megatron stops")
    )
    return replace(widths, sequence=wants and sizes.tensor > 1)


def _context(asked: ParallelRequest, widths: Widths, verdicts: dict[str, FlagOutcome]) -> Widths:
    args, sizes = asked.args, asked.sizes
    verdicts.setdefault("context-parallel-size", said("context"))
    verdicts.setdefault("ds-sequence-parallel-size", said("context", "attention"))
    verdicts["hierarchical-context-parallel-sizes"] = refused("nothing yet: the sequence is cut along one axis")
    if sizes.context == 1:
        verdicts["cp-comm-type"] = refused("ignored: the sequence is whole")
        return widths
    if args.has("ds-sequence-parallel-size") and not args.has("context-parallel-size"):
        return replace(widths, attention=Meeting.HEADS)
    kinds = args.texts("cp-comm-type") or ("p2p",)
    first = kinds[0].strip("[]'\",")
    verdicts["cp-comm-type"] = said("attention")
    if first not in MEETINGS:
        verdicts["cp-comm-type"] = refused(f"nothing yet for {first}: keys and values go around all devices")
    elif len({*kinds}) > 1:
        verdicts["cp-comm-type"] = refused(f"one kind for all layers: the first, {first}")
    return replace(widths, attention=MEETINGS.get(first, Meeting.RING))


def _experts(asked: ParallelRequest, widths: Widths, verdicts: dict[str, FlagOutcome]) -> Widths:
    args, sizes, experts = asked.args, asked.sizes, asked.experts
    width = max(1, args.number("expert-model-parallel-size", "moe-expert-parallel-size", default=1))
    if args.has("moe-expert-parallel-size"):
        width = min(width, max(experts, 1))  # as Megatron-DeepSpeed does without a word
    flags = ("expert-model-parallel-size", "moe-expert-parallel-size")
    inner_flags = ("expert-tensor-parallel-size", "enable-expert-tensor-parallelism")
    is_deepspeed = args.has("deepspeed", "moe-expert-parallel-size")
    inner = sizes.tensor
    if is_deepspeed and not args.has("enable-expert-tensor-parallelism"):
        inner = 1
    inner = args.number("expert-tensor-parallel-size", default=inner)
    if experts <= 1:
        verdicts |= dict.fromkeys((*flags, *inner_flags), refused("ignored: there are no experts"))
        return widths
    if experts % width:
        raise wrong(
            args,
            "expert-model-parallel-size",
            f"{width} devices do not divide {experts} experts",
            "each device has as many",
            "give a divisor",
        )
    verdicts |= dict.fromkeys(inner_flags, said("expert_tensor", "experts"))
    if inner == sizes.tensor:
        own = silent("experts are cut as layers are: what it is without this flag")
        is_cut = width > 1 and sizes.tensor > 1
        verdicts |= dict.fromkeys(inner_flags, said("expert_tensor") if is_cut else own)
    if width == 1:
        if inner < sizes.tensor:
            own = refused("nothing yet: with all experts on each device, they are cut as layers are")
            verdicts |= dict.fromkeys(inner_flags, own)
        return widths
    verdicts |= dict.fromkeys(flags, said("experts"))
    divided = replace(widths, experts=width, expert_tensor=inner if inner != sizes.tensor else 0)
    reason = problem(divided)
    if reason and divided.expert_tensor:
        other = replace(divided, expert_tensor=0)
        if not problem(other):
            verdicts |= dict.fromkeys(inner_flags, refused(f"{reason}: here experts are cut as layers are"))
            return other
    if reason:
        inside = sizes.data * sizes.tensor * sizes.context
        if inside % (width * inner):
            reason = f"{width} x {inner} devices of experts do not divide {inside} of a stage, where Megatron stops"
        verdicts |= dict.fromkeys((*flags, *inner_flags), refused(f"{reason}: here each device has all experts"))
        return widths
    return divided


def _order(asked: ParallelRequest, widths: Widths, verdicts: dict[str, FlagOutcome]) -> Widths:
    """The order of axes, and what goes on beside computation."""
    args = asked.args
    wants = args.has("use-tp-pp-dp-mapping")
    verdicts["use-tp-pp-dp-mapping"] = said("stages", "data")
    verdicts["overlap-grad-reduce"] = silent("always, in buckets")
    in_parts = widths.state is not None or args.has("use-distributed-optimizer", *FSDP)
    verdicts["overlap-param-gather"] = (
        silent("always: weights arrive while the next forward runs")
        if in_parts
        else refused("no weights are gathered: needs the distributed optimizer, without which Megatron stops")
    )
    own = "overlap-param-gather-with-optimizer-step"
    verdicts[own] = silent("always") if in_parts and widths.chunks > 1 else refused("needs the interleaved schedule")
    return replace(widths, replicas_first=wants)


# Later rules read what earlier ones have found.
RULES = (
    _devices,
    _batches,
    _tensor,
    _context,
    state_of,
    _experts,
    schedule_of,
    cuts_of,
    _order,
    recompute_of,
    host_of,
)
