"""What saves memory: state in parts, operators that are computed again, the memory of the host."""

from collections.abc import Iterator

from ssdsl.importers.megatron.architectures import DescribedModel
from ssdsl.importers.megatron.arguments import Arguments, FlagOutcome, refused, said, silent
from ssdsl.importers.megatron.request import ParallelRequest
from ssdsl.importers.widths import ATTENTION, Keeps, Widths
from ssdsl.record import replace

SHARDED = {"optim": Keeps.OPTIMIZER, "optim_grads": Keeps.GRADS, "optim_grads_params": Keeps.WEIGHTS}
ZERO = {1: Keeps.OPTIMIZER, 2: Keeps.GRADS, 3: Keeps.WEIGHTS}
FSDP = ("use-megatron-fsdp", "use-custom-fsdp", "custom-fsdp")


def state_of(asked: ParallelRequest, widths: Widths, verdicts: dict[str, FlagOutcome]) -> Widths:
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


def _asked(args: Arguments, verdicts: dict[str, FlagOutcome]) -> Iterator[tuple[str, Keeps]]:
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


def recompute_of(asked: ParallelRequest, widths: Widths, verdicts: dict[str, FlagOutcome]) -> Widths:
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


def _each(number: int) -> FlagOutcome:
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


def host_of(asked: ParallelRequest, widths: Widths, verdicts: dict[str, FlagOutcome]) -> Widths:
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
