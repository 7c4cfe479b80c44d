"""The widths that flags of Megatron ask for, and what became of each of these flags."""

import math
from collections.abc import Iterator, Mapping

from ssdsl.importers.errors import WidthsDiffer, WrongLayout
from ssdsl.importers.megatron.architectures import DescribedModel
from ssdsl.importers.megatron.arguments import Arguments, Outcome, became, refused, said, silent
from ssdsl.importers.megatron.layout import before, problem_of, stages_of
from ssdsl.importers.megatron.model import DROPOUT
from ssdsl.importers.widths import ATTENTION, Keeps, Meeting, Widths, problem
from ssdsl.record import Record, replace
from ssdsl.text.diagnostic import PlanError

MEETINGS = {"p2p": Meeting.RING, "all_gather": Meeting.GATHER, "a2a": Meeting.HEADS}
SHARDED = {"optim": Keeps.OPTIMIZER, "optim_grads": Keeps.GRADS, "optim_grads_params": Keeps.WEIGHTS}
ZERO = {1: Keeps.OPTIMIZER, 2: Keeps.GRADS, 3: Keeps.WEIGHTS}
FSDP = ("use-megatron-fsdp", "use-custom-fsdp", "custom-fsdp")
MESH = "MESH"  # of `Outcome.says`: the line of the mesh
GATHERED = "Dropout in attention needs all keys at once: they are gathered, where Megatron sends them around."
OPEN = "The number of devices is not in the source: --set D=4 for 4 replicas, and M for as many micro-batches less."
IN_LOOP = "in your own loop: the engine takes batches of any size; `ssdsl run` has one"


class PlanSizes(Record):
    """Widths that a model's text depends on: devices of a layer and of the pipeline, and the batch."""

    data: int
    tensor: int
    context: int
    stages: int
    batch: int
    micro_batch: int
    is_divided: bool  # whether the devices are a multiple of these widths


def _fewest(args: Arguments, inner: int) -> int:
    """The fewest replicas that experts and copies of the optimizer's state leave possible; `inner` are the devices of a
    replica in a stage."""
    experts = args.number("expert-model-parallel-size", "moe-expert-parallel-size", default=1)
    width = max(1, experts * args.number("expert-tensor-parallel-size", default=1))
    copies = max(1, args.number("num-distributed-optimizer-instances", default=1))
    return math.lcm(width // math.gcd(width, inner), copies)


class ParallelRequest(Record):
    """What the rules below read. `world` is the number of devices; it, `layers` and `experts` are 0 where they are not
    known, `kind` is None then."""

    args: Arguments
    sizes: PlanSizes
    world: int
    layers: int
    experts: int
    kind: DescribedModel | None


class Parallel(Record):
    """Widths, and what became of the flags that they come from."""

    widths: Widths
    verdicts: Mapping[str, Outcome]
    ends_behind: bool  # whether a stage begins behind all layers
    comments: tuple[str, ...] = ()


def sizes_of(args: Arguments, world: int) -> PlanSizes:
    """The widths of a number of devices, 0 where it is not known."""
    tensor = max(1, args.number("tensor-model-parallel-size", default=1))
    stages = max(1, args.number("pipeline-model-parallel-size", default=1))
    context = max(1, args.number("context-parallel-size", "ds-sequence-parallel-size", default=1))
    inner = tensor * stages * context
    is_divided = world % inner == 0
    data = world // inner if world and is_divided else _fewest(args, tensor * context)
    micro_batch = max(1, args.number("micro-batch-size", "batch-size", default=1))
    schedule = args.text("step-batch-size-schedule").replace(",", " ").split()
    last = schedule[-1].rpartition(":")[2] if schedule else ""
    batch = args.number("global-batch-size") or (int(last) if last.isdigit() else 0) or micro_batch * data
    return PlanSizes(data, tensor, context, stages, batch, micro_batch, is_divided)


def parallel_of(asked: ParallelRequest) -> Parallel:
    """The widths. Raises PlanError."""
    sizes = asked.sizes
    is_open = not asked.world or not sizes.is_divided
    widths = Widths(sizes.data, tensor=sizes.tensor, context=sizes.context, stages=sizes.stages, is_open=is_open)
    verdicts: dict[str, Outcome] = {}
    for rule in (_devices, _batches, _tensor, _context, _state, _experts, _pipeline, _cuts, _order, _recompute, _host):
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


def _wrong(args: Arguments, flag: str, fact: str, reason: str, change: str) -> PlanError:
    return PlanError(WidthsDiffer(args.span(args.last(flag)), fact, reason, change))


def _devices(asked: ParallelRequest, widths: Widths, verdicts: dict[str, Outcome]) -> Widths:
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


def _batches(asked: ParallelRequest, widths: Widths, verdicts: dict[str, Outcome]) -> Widths:
    """Micro-batches: what replicas and micro-batches leave of the batch."""
    args, sizes, world = asked.args, asked.sizes, asked.world
    each = sizes.micro_batch * sizes.data
    has_batch = args.has("global-batch-size", "step-batch-size-schedule")
    if sizes.batch % each:
        if has_batch and world and sizes.is_divided:
            raise _wrong(
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


def _tensor(asked: ParallelRequest, widths: Widths, verdicts: dict[str, Outcome]) -> Widths:
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


def _context(asked: ParallelRequest, widths: Widths, verdicts: dict[str, Outcome]) -> Widths:
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


def _state(asked: ParallelRequest, widths: Widths, verdicts: dict[str, Outcome]) -> Widths:
    """What lies in parts over replicas."""
    args, sizes = asked.args, asked.sizes
    flags = dict(_asked(args, verdicts))
    state = max(flags.values(), key=[*Keeps].index, default=None)
    instances = max(1, args.number("num-distributed-optimizer-instances", default=1))
    shards = 0
    if instances > 1 and state is not None:
        verdicts["num-distributed-optimizer-instances"] = said("shards")
        if sizes.data % instances:
            why = f"{instances} do not divide {sizes.data} replicas"
            verdicts["num-distributed-optimizer-instances"] = refused(why)
        else:
            shards = sizes.data // instances
    else:
        why = "ignored: nothing lies in parts" if instances > 1 else ""
        own = refused(why) if why else silent("1: what it is without this flag")
        verdicts["num-distributed-optimizer-instances"] = own
    alone = sizes.data * sizes.context == 1 and not widths.is_open
    for flag, keeps in flags.items():
        if alone:
            verdicts[flag] = refused("ignored: there is one replica, which holds all")
        else:
            verdicts[flag] = said("state") if keeps is state else silent("what other flags say holds this, too")
    if state is None or alone:
        return widths
    return replace(widths, state=state, shards=shards)


def _asked(args: Arguments, verdicts: dict[str, Outcome]) -> Iterator[tuple[str, Keeps]]:
    """Yields the flags that ask for parts of the state, and what each asks for."""
    own = "data-parallel-sharding-strategy"
    if args.has("use-distributed-optimizer"):
        yield "use-distributed-optimizer", Keeps.OPTIMIZER
    if args.has(*FSDP):
        strategy = args.text(own, default="optim_grads_params")
        if strategy in SHARDED:
            for flag in FSDP:
                if args.has(flag):
                    yield flag, SHARDED[strategy]
            if args.has(own):
                yield own, SHARDED[strategy]
        else:
            verdicts |= dict.fromkeys((*FSDP, own), silent("no_shard: nothing lies in parts"))
    else:
        verdicts[own] = refused("ignored without FSDP")
    outer = args.text("outer-dp-sharding-strategy", default="no_shard")
    why = "nothing yet: copies of what lies in parts are whole" if args.has(*FSDP) else "ignored without FSDP"
    verdicts["outer-dp-sharding-strategy"] = refused(why) if outer != "no_shard" else silent("copies are whole")
    if args.has("use-torch-fsdp2"):
        keeps = Keeps.GRADS if args.has("torch-fsdp2-no-reshard-after-forward") else Keeps.WEIGHTS
        yield "use-torch-fsdp2", keeps
        if args.has("torch-fsdp2-no-reshard-after-forward"):
            yield "torch-fsdp2-no-reshard-after-forward", keeps
    else:
        verdicts["torch-fsdp2-no-reshard-after-forward"] = refused("ignored without FSDP 2")
    is_deepspeed = args.has("deepspeed", "json:zero_optimization.stage")
    for flag in ("zero-stage", "json:zero_optimization.stage"):
        stage = args.number(flag)
        if stage not in ZERO:
            verdicts[flag] = silent("0: nothing lies in parts")
        elif flag == "zero-stage" and not is_deepspeed:
            verdicts[flag] = refused("ignored without --deepspeed")
        elif flag == "zero-stage" and args.has("json:zero_optimization.stage"):
            inner = args.number("json:zero_optimization.stage")
            verdicts[flag] = (
                said("state")
                if inner == stage
                else refused(f"the config says stage {inner}, which DeepSpeed's engine takes")
            )
            if inner == stage:
                yield flag, ZERO[stage]
        else:
            yield flag, ZERO[stage]


def _experts(asked: ParallelRequest, widths: Widths, verdicts: dict[str, Outcome]) -> Widths:
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
        raise _wrong(
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


def _pipeline(asked: ParallelRequest, widths: Widths, verdicts: dict[str, Outcome]) -> Widths:
    """How many stages a device has, in what order they run."""
    args, sizes, layers = asked.args, asked.sizes, asked.layers
    verdicts.setdefault("pipeline-model-parallel-size", said("stages", "schedule"))
    chunk_flags = ("num-layers-per-virtual-pipeline-stage", "num-virtual-stages-per-pipeline-rank")
    wanted = _chunks(args, sizes, layers)
    chunks = wanted if sizes.stages > 1 else 1
    verdicts |= dict.fromkeys(chunk_flags, said("chunks", "schedule"))
    if chunks > 1 and widths.micro % sizes.stages:
        own = refused(f"{widths.micro} micro-batches are no multiple of {sizes.stages} devices: one stage on each")
        verdicts |= dict.fromkeys(chunk_flags, own)
        chunks = 1
    elif wanted > 1 and sizes.stages == 1:
        verdicts |= dict.fromkeys(chunk_flags, refused("there is no pipeline, where Megatron stops"))
    elif chunks == 1:
        verdicts |= dict.fromkeys(chunk_flags, silent("one stage on a device: what it is without this flag"))
    group = args.number("microbatch-group-size-per-virtual-pipeline-stage", default=sizes.stages)
    verdicts["microbatch-group-size-per-virtual-pipeline-stage"] = (
        refused("ignored: each device has one stage")
        if chunks == 1
        else silent("as many as devices: what it is without this flag")
        if group == sizes.stages
        else refused(f"nothing yet: `interleaved` takes micro-batches in groups of {sizes.stages}")
    )
    schedule = "interleaved" if chunks > 1 else "one_f_one_b"
    for flag in ("enable-zbh1-pipeline", "enable-zbh1-exact-semantics", "delay-wgrad-compute"):
        if not args.has(flag):
            continue
        if sizes.stages > 1 and chunks == 1:
            schedule = "zb_h1"
            verdicts[flag] = said("schedule")
        else:
            verdicts[flag] = refused("nothing here: there is no pipeline, or `order` with `.dgrad` and `.wgrad`")
    overlap = ("overlap-p2p-communication", "no-overlap-p2p-communication", "overlap-p2p-communication-warmup-flush")
    own = (
        silent("always: stages compute while they send") if chunks > 1 else silent("nothing else to compute meanwhile")
    )
    verdicts |= dict.fromkeys(overlap, own)
    return replace(widths, chunks=chunks, schedule=schedule)


def _chunks(args: Arguments, sizes: PlanSizes, layers: int) -> int:
    """The stages on a device. Raises PlanError where layers do not divide into them."""
    text = args.text("pipeline-model-parallel-layout")
    if text:
        found = stages_of(text)
        return max(1, len(found) // sizes.stages) if found is not None else 1
    if args.has("num-virtual-stages-per-pipeline-rank"):
        return max(1, args.number("num-virtual-stages-per-pipeline-rank", default=1))
    each = args.number("num-layers-per-virtual-pipeline-stage")
    if not each or not layers or sizes.stages == 1:
        return 1
    own = layers + args.has("account-for-embedding-in-pipeline-split") + args.has("account-for-loss-in-pipeline-split")
    if own % (sizes.stages * each):
        raise _wrong(
            args,
            "num-layers-per-virtual-pipeline-stage",
            f"stages of {each} layers on {sizes.stages} devices do not divide {own} layers",
            "each device has as many stages",
            f"give a divisor of {own / sizes.stages:g}",
        )
    return own // (sizes.stages * each)


def _cuts(asked: ParallelRequest, widths: Widths, verdicts: dict[str, Outcome]) -> Widths:
    """Which layers a stage has."""
    args, sizes, layers = asked.args, asked.sizes, asked.layers
    embedding, loss = (
        args.has("account-for-embedding-in-pipeline-split", "standalone-embedding-stage"),
        args.has("account-for-loss-in-pipeline-split"),
    )
    first, last = "decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers"
    flags = (
        "account-for-embedding-in-pipeline-split",
        "account-for-loss-in-pipeline-split",
        "standalone-embedding-stage",
        "pipeline-model-parallel-layout",
        "mtp-standalone",
        first,
        last,
    )
    if sizes.stages == 1:
        verdicts |= dict.fromkeys(flags, refused("ignored: there is one stage"))
        return widths
    verdicts |= dict.fromkeys(flags, said("before", "stages"))
    verdicts["mtp-standalone"] = refused("the model here predicts one token")
    if args.text("pipeline-model-parallel-layout"):
        return replace(widths, before=_of_layout(args, sizes, layers))
    count = sizes.stages * widths.chunks
    if not layers:
        return widths
    if args.has(first, last):
        return replace(widths, before=_uneven(args, sizes, layers, widths.chunks))
    own = layers + embedding + loss
    if args.has("standalone-embedding-stage"):
        return replace(widths, before=(0, *(layers * n // (count - 1) for n in range(1, count - 1))))
    if own % count and not args.has("deepspeed"):
        stops = f"{count} stages do not divide {own} layers, where Megatron stops: here they are as equal as possible"
        verdicts["pipeline-model-parallel-size"] = refused(stops)
        return widths
    if own == layers:
        return widths
    each = own // count
    return replace(widths, before=tuple(max(0, each * n - embedding) for n in range(1, count)))


def _of_layout(args: Arguments, sizes: PlanSizes, layers: int) -> tuple[int, ...]:
    text = args.text("pipeline-model-parallel-layout")
    span = args.span(args.last("pipeline-model-parallel-layout"))
    found = stages_of(text)
    if found is None:
        fact = f"`{text}` has other letters than E, t, m and L"
        raise PlanError(WrongLayout(span, fact, "write stages of these, with | between them"))
    reason = problem_of(found, layers, sizes.stages)
    if reason:
        raise PlanError(WrongLayout(span, f"`{text}` is no layout: {reason}", "change the layout, or the widths"))
    return before(found)


def _uneven(args: Arguments, sizes: PlanSizes, layers: int, chunks: int) -> tuple[int, ...]:
    """The stages where the first or the last device has a number of layers of its own."""
    first, last = "decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers"
    ends = {place: args.number(flag) for place, flag in ((0, first), (sizes.stages - 1, last)) if args.has(flag)}
    others = sizes.stages - len(ends)
    rest = layers - sum(ends.values())
    flag = first if args.has(first) else last
    if rest < 0 or (others and rest % others) or (not others and rest):
        raise _wrong(
            args,
            flag,
            f"{others} stages do not divide the {rest} layers that are left",
            f"of {layers} layers, the first or the last stage takes {', '.join(map(str, ends.values()))}",
            "give other numbers",
        )
    counts = [ends.get(place, rest // max(others, 1)) for place in range(sizes.stages)]
    if any(count % chunks for count in counts):
        raise _wrong(
            args, flag, f"{chunks} stages do not divide {counts} layers", "each device has so many", "give others"
        )
    parts = [counts[place] // chunks for _ in range(chunks) for place in range(sizes.stages)]
    return tuple(sum(parts[:n]) for n in range(1, len(parts)))


def _order(asked: ParallelRequest, widths: Widths, verdicts: dict[str, Outcome]) -> Widths:
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


def _recompute(asked: ParallelRequest, widths: Widths, verdicts: dict[str, Outcome]) -> Widths:
    args, layers, experts, kind = asked.args, asked.layers, asked.experts, asked.kind
    granularity = args.text("recompute-granularity")
    if args.has("recompute-activations"):
        granularity = "selective"
    old = (
        "checkpoint-activations",
        "activations-checkpoint-method",
        "json:activation_checkpointing",
    )
    if not granularity and args.has(*old):
        granularity = "full"
    count_flags = ("recompute-num-layers", "checkpoint-num-layers", "activations-checkpoint-num-layers")
    flags = (
        "recompute-granularity",
        "recompute-method",
        *old,
        *count_flags,
        "recompute-modules",
        "recompute-activations",
    )
    verdicts |= dict.fromkeys(flags, refused("ignored: nothing is computed again without `--recompute-granularity`"))
    verdicts["deepspeed-activation-checkpointing"] = silent("which code computes again")
    verdicts["moe-layer-recompute"] = said("recompute")
    path = kind.layers if kind is not None else None
    found: list[str] = []
    if granularity == "full":
        verdicts |= dict.fromkeys(("recompute-granularity", "recompute-method", *old), said("recompute"))
        verdicts["recompute-modules"] = refused("ignored: whole layers are computed again")
        method = args.text("recompute-method", "activations-checkpoint-method", default="uniform")
        number = args.number(*count_flags, default=1)
        found.append(_layers_again(method, number, layers, path, widths))
        own = said("recompute") if method == "block" else _each(number)
        verdicts |= dict.fromkeys(count_flags, own)
    elif granularity == "selective":
        verdicts |= dict.fromkeys(("recompute-granularity", "recompute-activations"), said("recompute"))
        verdicts["recompute-modules"] = said("recompute")
        verdicts["recompute-method"] = refused("of full recomputation only, where Megatron stops")
        verdicts |= dict.fromkeys(count_flags, refused("ignored: of full recomputation only"))
        names = args.texts("recompute-modules") or ("core_attn",)
        chosen = {name: _again(name, kind, experts) for own in names for name in own.strip("[]").split(",") if name}
        missing = [name for name, what in chosen.items() if what is None]
        found += [what for what in chosen.values() if what is not None]
        if missing:
            why = f"nothing here that is {', '.join(missing)}"
            verdicts["recompute-modules"] = refused(why)
    if args.has("moe-layer-recompute"):
        found += [what] if (what := _again("moe", kind, experts)) else []
    return replace(widths, recompute=tuple(dict.fromkeys(found)))


def _each(number: int) -> Outcome:
    if number == 1:
        return said("recompute")
    return refused(f"each layer is a checkpoint, not {number} together: what is kept between them is small")


def _layers_again(method: str, number: int, layers: int, path: str | None, widths: Widths) -> str:
    """The layers that are computed again: all, or with `block` the first of each stage."""
    if path is None:
        return "model"
    if method != "block" or not layers:
        return f'model["{path}"]'
    count = widths.stages * widths.chunks
    starts = [0, *(widths.before or (layers * n // count for n in range(1, count)))]
    ends = [*starts[1:], layers]
    chosen = [n for start, end in zip(starts, ends, strict=True) for n in range(start, min(end, start + number))]
    if len(chosen) == layers:
        return f'model["{path}"]'
    return f'model["{path.replace("*", "{" + _runs(chosen) + "}")}"]' if path.count("*") == 1 else f'model["{path}"]'


def _runs(numbers: list[int]) -> str:
    """Numbers as runs.

    >>> _runs([0, 1, 2, 5, 8, 9])
    '0-2,5,8-9'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(f"{a}-{b}" if b > a else f"{a}" for a, b in runs)


def _again(name: str, kind: DescribedModel | None, experts: int) -> str | None:
    """The operators that a module of `--recompute-modules` stands for."""
    if name == "core_attn":
        return ATTENTION if kind is None else kind.core
    if kind is None:
        return None
    match name:
        case "layernorm":
            return f'model["{kind.norms}"]'
        case "mlp":
            return f'model["{kind.ffn}"]'
        case "moe":
            return f'model["{kind.ffn}"]' if experts else None
        case "moe_act" if kind.experts is not None and kind.name != "moe_gpt":
            return f'model["{kind.experts}"].silu'
        case "mla_up_proj" if "latent" in kind.values("attention"):
            return f'model["{kind.layers}.self_attn.*_b_proj"]'
        case "shared_experts" if "n_shared_experts" in kind.options:
            return f'model["{kind.layers}.mlp.shared_experts"]'
    return None


def _host(asked: ParallelRequest, widths: Widths, verdicts: dict[str, Outcome]) -> Widths:
    """What lies in the memory of the host."""
    args, layers, kind = asked.args, asked.layers, asked.kind
    found = []
    number = args.number("cpu-offloading-num-layers")
    verdicts["cpu-offloading-num-layers"] = said("to_host") if number else silent("0: what it is without this flag")
    if number and kind is not None and kind.layers.count("*") == 1:
        own = _runs([*range(min(number, layers))])
        found.append(f'model["{kind.layers.replace("*", "{" + own + "}")}"].activations')
    elif number:
        verdicts["cpu-offloading-num-layers"] = refused("the layers of the model are not known: `assign ... to host`")
    share = args.share("optimizer-offload-fraction", default=1.0)
    verdicts["optimizer-cpu-offload"] = verdicts["cpu-optimizer"] = said("to_host")
    verdicts["optimizer-offload-fraction"] = (
        refused("ignored: the optimizer's state is on the devices")
        if not args.has("optimizer-cpu-offload")
        else said("to_host")
        if share == 1.0
        else refused("all of the optimizer's state lies there: of some weights, `assign OPS.optimizer to host`")
    )
    device = args.text("json:zero_optimization.offload_optimizer.device", default="none")
    params = args.text("json:zero_optimization.offload_param.device", "remote-device", default="none")
    if args.has("optimizer-cpu-offload", "cpu-optimizer") or device in ("cpu", "nvme"):
        found.append("model.optimizer")
    nothing, no_disks = silent("none: what it is without this"), refused("no disks: in the memory of the host")
    kept = {"none": nothing, "cpu": said("to_host")}.get(device, no_disks)
    verdicts["json:zero_optimization.offload_optimizer.device"] = kept
    flags = ("json:zero_optimization.offload_param.device", "remote-device")
    if params in ("cpu", "nvme") and widths.state is Keeps.WEIGHTS:
        found += [what for what in ("model.optimizer", "model.weights") if what not in found]
        verdicts |= dict.fromkeys(flags, said("to_host") if params == "cpu" else no_disks)
    else:
        is_none = params == "none"
        why = (
            silent("none: what it is without this") if is_none else refused("ignored: weights are whole on each device")
        )
        verdicts |= dict.fromkeys(flags, why)
    return replace(widths, to_host=tuple(found))
