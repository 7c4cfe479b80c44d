"""Stages of a pipeline: how many a device has, which layers, and in what order they run."""

from ssdsl.importers.errors import WrongLayout
from ssdsl.importers.megatron.arguments import Arguments, FlagOutcome, refused, said, silent
from ssdsl.importers.megatron.layout import before, problem_of, stages_of
from ssdsl.importers.megatron.request import ParallelRequest, PlanSizes, wrong
from ssdsl.importers.widths import Widths
from ssdsl.record import replace
from ssdsl.text.diagnostic import PlanError


def schedule_of(asked: ParallelRequest, widths: Widths, verdicts: dict[str, FlagOutcome]) -> Widths:
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
        raise wrong(
            args,
            "num-layers-per-virtual-pipeline-stage",
            f"stages of {each} layers on {sizes.stages} devices do not divide {own} layers",
            "each device has as many stages",
            f"give a divisor of {own / sizes.stages:g}",
        )
    return own // (sizes.stages * each)


def cuts_of(asked: ParallelRequest, widths: Widths, verdicts: dict[str, FlagOutcome]) -> Widths:
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
        raise wrong(
            args,
            flag,
            f"{others} stages do not divide the {rest} layers that are left",
            f"of {layers} layers, the first or the last stage takes {', '.join(map(str, ends.values()))}",
            "give other numbers",
        )
    counts = [ends.get(place, rest // max(others, 1)) for place in range(sizes.stages)]
    if any(count % chunks for count in counts):
        raise wrong(
            args, flag, f"{chunks} stages do not divide {counts} layers", "each device has so many", "give others"
        )
    parts = [counts[place] // chunks for _ in range(chunks) for place in range(sizes.stages)]
    return tuple(sum(parts[:n]) for n in range(1, len(parts)))
