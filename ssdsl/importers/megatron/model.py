"""The `--model` that flags of Megatron describe: the one of `architectures.py` that differs least from them."""

import ast
import math
from collections.abc import Mapping
from typing import Any

from ssdsl.importers.errors import WidthsDiffer
from ssdsl.importers.megatron.architectures import BERT, FEATURES, IMAGES, MODELS, PAIRS, DescribedModel
from ssdsl.importers.megatron.arguments import Arguments, FlagOutcome, became, refused, silent
from ssdsl.importers.widths import Net
from ssdsl.record import Record
from ssdsl.text.diagnostic import PlanError

# Sizes of tokenizers that need no file to be known. Sources: GPT-2's and BERT's vocabularies, Llama 2's report, and the
# default of Megatron's TikTokenizer.
TOKENIZERS = {
    "GPT2BPETokenizer": 50257,
    "BertWordPieceLowerCase": 30522,
    "BertWordPieceCase": 28996,
    "Llama2Tokenizer": 32000,
    "Llama3Tokenizer": 128256,
    "TikTokenizer": 131072,
}
ACTS = {"gelu": "gelu", "relu2": "relu2", "relu": "relu", "swiglu": "silu", "geglu": "gelu", "clamped": "silu"}
USUAL = 32000, "Llama 2"  # a vocabulary that is in no flag, of models with rotary positions
OTHER = 50257, "GPT-2"  # of others
DROPOUT = 0.1  # of Megatron, where no flag says another
SIZE_FLAGS = {
    "layers": ("num-layers", "encoder-num-layers"),
    "decoder_layers": ("decoder-num-layers",),
    "hidden": ("hidden-size",),
    "heads": ("num-attention-heads",),
    "ffn": ("ffn-hidden-size",),
    "seq": ("seq-length", "encoder-seq-length"),
    "decoder_seq": ("decoder-seq-length",),
    "positions": ("max-position-embeddings",),
    "theta": ("rotary-base", "rotary-position-embeddings-theta"),
    "epsilon": ("norm-epsilon", "layernorm-epsilon"),
    "vocab": (
        "vocab-size",
        "padded-vocab-size",
        "make-vocab-size-divisible-by",
        "no-pad-vocab-size",
        "disable-pad-vocab-size",
        "tokenizer-type",
        "vocab-extra-ids",
    ),
    "experts": ("num-experts",),
    "top": ("moe-router-topk", "topk"),
    "expert_ffn": ("moe-ffn-hidden-size",),
    "shared_ffn": ("moe-shared-expert-intermediate-size",),
    "groups": ("moe-router-num-groups",),
    "group_top": ("moe-router-group-topk",),
    "router_scale": ("moe-router-topk-scaling-factor",),
    "balance": ("moe-aux-loss-coeff", "moe-loss-coeff", "moe-router-load-balancing-type"),
    "z_loss": ("moe-z-loss-coeff",),
    "capacity": ("moe-expert-capacity-factor", "moe-train-capacity-factor"),
    "query_rank": ("q-lora-rank",),
    "key_rank": ("kv-lora-rank",),
    "query_width": ("qk-head-dim",),
    "rotary_width": ("qk-pos-emb-head-dim",),
    "value_width": ("v-head-dim",),
    "image": ("img-h", "img-w"),
    "patch": ("patch-dim",),
    "classes": ("num-classes",),
    "window": ("window-size",),
}
MOST_LAYERS = 10_000
OF_EXPERTS = tuple("top expert_ffn shared_ffn groups group_top router_scale balance z_loss capacity".split())
NO_MODEL = "no model here has all of these layers: give your own with `--model`"
# Flags that describe a model which no row has, and what it is.
ELSEWHERE = {
    "hybrid-layer-pattern": "layers of Mamba between those of attention",
    "hybrid-override-pattern": "layers of Mamba between those of attention",
    "is-hybrid-model": "layers of Mamba between those of attention",
    "experimental-attention-variant": "attention of another kind",
    "language-model-type": "a language model that sees images",
    "disable-vision-class-token": "a language model that sees images",
    "dataloader-seq-length": "a language model that sees images",
    "use-checkpoint-args": "the model is that of a checkpoint",
    "heterogeneous-layers-config-path": "layers of different kinds, from a file",
    "retro-add-retriever": "a model that retrieves",
    "vision-pretraining": "images without labels",
    "spec": "layers that a Python function makes",
}


class ModelChoice(Record):
    """A model as the plan's header has it, the layers that it has, what became of the flags, and how it differs from
    them where no flag says so."""

    net: Net
    layers: int
    experts: int
    verdicts: Mapping[str, FlagOutcome]
    comments: tuple[str, ...]
    kind: DescribedModel | None = None


def model_of(args: Arguments, script: str, tensor: int, stages: int, batch: int) -> ModelChoice:
    """The model; `tensor` pads its vocabulary, and with several `stages` no loss is a product of means."""
    reason = _elsewhere(args, script)
    numbers = _numbers(args, script, tensor, stages, batch)
    if reason or not args.has("hidden-size", "encoder-num-layers", "num-layers"):
        return _unknown(args, reason or "the size of a model", numbers)
    found = _features(args, numbers)
    rows = {"bert": (BERT,), "t5": (PAIRS,), "vision": (IMAGES,)}.get(_task(args, script), MODELS)
    kind = min(rows, key=lambda row: _distance(row, found))
    text = _text(kind, _fitted(kind, numbers, found, args))
    differing = [name for name in found if found[name] not in kind.values(name)]
    verdicts = {flag: became("of `--model`") for flag in SIZE_FLAGS["layers"]}
    verdicts |= _said(kind, text, found, differing, numbers, args, stages)
    flags = {own.flag for own in args.settings}
    silently = [name for name in differing if not flags & {*FEATURES[name].flags}]
    comments = tuple(
        f"Megatron would have {FEATURES[name].values[found[name]]}, `{kind.name}` has "
        f"{FEATURES[name].values[kind.values(name)[0]]}."
        for name in silently
        if name != "dropout"
    )
    net = Net(text, kind.layers, kind.experts if numbers["experts"] and kind.experts else None)
    return ModelChoice(net, _layers(kind, numbers), numbers["experts"] or 0, verdicts, comments, kind)


def _layers(kind: DescribedModel, numbers: Mapping[str, Any]) -> int:
    """The layers that a pipeline cuts: of an encoder and a decoder both."""
    return int(numbers["layers"]) + (int(numbers["decoder_layers"]) if kind is PAIRS else 0)


def _elsewhere(args: Arguments, script: str) -> str:
    """What the flags describe that no model here is, or ""."""
    for flag, what in ELSEWHERE.items():
        own = args.last(flag)
        if own is not None and (flag != "spec" or "mamba" in " ".join(own.values)):
            return what
    if args.text("vision-backbone-type", default="vit") != "vit":
        return "a vision model of another kind"
    for word, what in (
        ("mamba", "layers of Mamba between those of attention"),
        ("hybrid", "layers of Mamba between those of attention"),
        ("ict", "two encoders"),
        ("retro", "a model that retrieves"),
        ("vlm", "a language model that sees images"),
        ("inpaint", "images without labels"),
        ("dino", "images without labels"),
    ):
        if f"_{word}" in script:
            return what
    return ""


def _unknown(args: Arguments, reason: str, numbers: Mapping[str, Any]) -> ModelChoice:
    is_missing = reason == "the size of a model"
    flags = {flag for own in SIZE_FLAGS.values() for flag in own} | {f for own in FEATURES.values() for f in own.flags}
    why = "no flag says the size of the model: give it with `--model`" if is_missing else f"{reason}: {NO_MODEL}"
    verdicts = {flag: refused(why) for flag in flags | {*ELSEWHERE}}
    comment = "The model is not that of the flags: give it with --model."
    return ModelChoice(Net(), numbers["layers"] or 0, numbers["experts"] or 0, verdicts, (comment,))


def _task(args: Arguments, script: str) -> str:
    """What is trained: "gpt", "bert", "t5", "vision"."""
    if "bert" in script or (args.has("bert-no-binary-head", "mask-prob") and not args.has("decoder-num-layers")):
        return "bert"
    if "t5" in script or args.has("decoder-num-layers", "decoder-seq-length"):
        return "t5"
    return "vision" if "vision" in script or args.has("img-h", "patch-dim", "num-classes") else "gpt"


# -- numbers -----------------------------------------------------------------------------------------------------------


def _numbers(args: Arguments, script: str, tensor: int, stages: int, batch: int) -> dict[str, Any]:
    """The numbers that options may have, by their names; None for those that no flag says and no default has."""
    hidden = args.number("hidden-size", default=1024)
    heads = args.number("num-attention-heads", default=max(1, hidden // 64))
    layers = args.number("num-layers", "encoder-num-layers", default=0)
    is_gated = args.has("swiglu", "quick-geglu")
    ffn = args.number("ffn-hidden-size") or (4 * hidden * 2 // 3 // 64 * 64 if is_gated else 4 * hidden)
    if args.has("swiglu") and not args.has("ffn-hidden-size") and args.has("multi-latent-attention"):
        ffn = 4 * hidden
    seq = args.number("seq-length", "encoder-seq-length", default=args.number("max-position-embeddings", default=1024))
    keys = args.number("num-query-groups") if args.has("group-query-attention") else 0
    experts = args.number("num-experts")
    dense = _dense_layers(args, layers) if experts else []
    expert_ffn = args.number("moe-ffn-hidden-size") or ffn
    shared = args.number("moe-shared-expert-intermediate-size")
    capacity = args.share("moe-expert-capacity-factor", "moe-train-capacity-factor", default=1.25)
    hidden_dropout = args.share("hidden-dropout", default=DROPOUT)
    epsilon = args.share("norm-epsilon", "layernorm-epsilon", default=1e-5)
    return {
        "layers": layers,
        "decoder_layers": args.number("decoder-num-layers", default=layers),
        "hidden": hidden,
        "heads": heads,
        "keys": keys or args.number("num-key-value-heads") or heads,
        "width": args.number("kv-channels") or hidden // max(heads, 1),
        "ffn": ffn,
        "seq": seq,
        "decoder_seq": args.number("decoder-seq-length", default=seq),
        "positions": max(seq, args.number("max-position-embeddings", default=seq)),
        "batch": batch,
        "vocab": vocabulary(args, script, tensor) or _padded(args, _usual(args)[0], tensor),
        "has_vocab": vocabulary(args, script, tensor) is not None,
        "theta": args.number("rotary-base", "rotary-position-embeddings-theta", default=10000),
        "epsilon": epsilon,
        "hidden_dropout": hidden_dropout,
        "attention_dropout": args.share("attention-dropout", default=DROPOUT),
        "experts": experts,
        "top": min(args.number("moe-router-topk", "topk", default=2 if not args.has("deepspeed") else 1), experts or 1),
        "expert_ffn": expert_ffn,
        "moe_ffn": args.number("moe-ffn-hidden-size"),
        "dense": dense,
        "dense_layers": len(dense),
        "every": args.number("expert-interval", default=_frequency(args)) if experts else 1,
        "shared_ffn": shared,
        "shared": shared // expert_ffn if shared else 1 if args.text("mlp-type") == "residual" else 0,
        "groups": args.number("moe-router-num-groups", default=1),
        "group_top": args.number("moe-router-group-topk", default=1),
        "router_scale": args.share("moe-router-topk-scaling-factor", default=1.0),
        "balance": 0.0 if stages > 1 else _balance(args),
        "z_loss": args.share("moe-z-loss-coeff", default=0.0),
        "capacity": round(100 * capacity) if capacity > 0 else 125,
        "query_rank": args.number("q-lora-rank") or None,
        "key_rank": args.number("kv-lora-rank", default=32),
        "query_width": args.number("qk-head-dim", default=128),
        "rotary_width": args.number("qk-pos-emb-head-dim", default=64),
        "value_width": args.number("v-head-dim", default=128),
        "window": int((args.text("window-size").strip("()").split(",") or ["128"])[0].strip() or 128)
        if args.text("window-size")[:1].strip("(").isdigit() or args.text("window-size").startswith("(")
        else 128,
        "image": args.number("img-h", default=224),
        "patch": args.number("patch-dim", default=16),
        "classes": args.number("num-classes", default=1000),
    }


def _frequency(args: Arguments) -> int:
    if args.has("deepspeed"):
        return 2
    text = args.text("moe-layer-freq", default="1")
    return int(text) if text.isdigit() else 1


def _balance(args: Arguments) -> float:
    if args.has("moe-loss-coeff"):
        return args.share("moe-loss-coeff")
    kinds = args.texts("moe-router-load-balancing-type") or ("aux_loss",)
    return args.share("moe-aux-loss-coeff") if any("aux_loss" in kind for kind in kinds) else 0.0


def vocabulary(args: Arguments, script: str, tensor: int) -> int | None:
    """The vocabulary as Megatron pads it, None where no flag says it."""
    if args.has("padded-vocab-size"):
        return args.number("padded-vocab-size") or None
    usual = {"bert": "BertWordPieceLowerCase", "t5": "BertWordPieceCase"}.get(_task(args, script), "GPT2BPETokenizer")
    kind = args.text("tokenizer-type", default=usual)
    size = args.number("vocab-size") or TOKENIZERS.get(kind, 0)
    if not size:
        return None
    return _padded(args, size + args.number("vocab-extra-ids"), tensor)


def _usual(args: Arguments) -> tuple[int, str]:
    """A vocabulary that is like that of the model, and whose it is."""
    return USUAL if _position(args) == "rope" else OTHER


def _padded(args: Arguments, size: int, tensor: int) -> int:
    if args.has("no-pad-vocab-size", "disable-pad-vocab-size"):
        return size
    multiple = args.number("make-vocab-size-divisible-by", default=128) * max(tensor, 1)
    return math.ceil(size / multiple) * multiple


def _dense_layers(args: Arguments, layers: int) -> list[int]:
    """The layers without experts. Raises PlanError for a pattern of another number of layers."""
    text = args.text("moe-layer-freq", default="1")
    if text.isdigit():
        return [n for n in range(min(layers, MOST_LAYERS)) if n % max(int(text), 1)]
    pattern = _pattern(text)
    if len(pattern) != layers:
        raise PlanError(
            WidthsDiffer(
                args.span(args.last("moe-layer-freq")),
                f"the pattern of `--moe-layer-freq` has {len(pattern)} layers, the model {layers}",
                "each item is a layer, 1 for one with experts",
                f"give a list of {layers}, such as ([0]*1+[1]*{layers - 1})",
            )
        )
    return [n for n, has_experts in enumerate(pattern) if not has_experts]


def _pattern(text: str) -> list[int]:
    """A list as Python has it, of numbers, sums and products; [] for anything else.

    >>> _pattern("([0]*2+[1]*3)*2")
    [0, 0, 1, 1, 1, 0, 0, 1, 1, 1]
    """

    def of(node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=int() as number):
                return number
            case ast.List(elts=items):
                return [of(item) for item in items]
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return of(left) + of(right)
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                a, b = of(left), of(right)
                sizes = [len(x) if isinstance(x, list) else x for x in (a, b)]
                return a * b if sizes[0] * sizes[1] < 10000 else []
        raise ValueError

    try:
        found = of(ast.parse(text.strip().strip("'\""), mode="eval").body)
    except (SyntaxError, ValueError, TypeError, RecursionError):
        return []
    return found if isinstance(found, list) and all(isinstance(item, int) for item in found) else []


# -- features ----------------------------------------------------------------------------------------------------------


def _features(args: Arguments, numbers: Mapping[str, Any]) -> dict[str, str]:
    """What the flags describe, by the names and words of `FEATURES`."""
    has_experts = bool(numbers["experts"])
    found = {
        "attention": _attention(args),
        "experts": _experts(numbers) if has_experts else "none",
        "act": _act(args),
        "position": _position(args),
        "norm": _norm(args),
        "keys": "grouped" if numbers["keys"] != numbers["heads"] else "all",
        "width": "free" if numbers["width"] * numbers["heads"] != numbers["hidden"] else "equal",
        "bias": "all" if not args.has("disable-bias-linear") else "qkv" if args.has("add-qkv-bias") else "none",
        "head": "untied" if args.has("untie-embeddings-and-output-weights") else "tied",
        "qk_norm": "yes" if args.has("qk-layernorm") else "no",
        "rotary": _rotary(args),
        "scaling": "llama3" if args.has("use-rope-scaling") else "no",
        "dropout": _dropout(numbers),
        "residual": "after" if args.has("apply-residual-connection-post-layernorm") else "before",
        "tokens": "more" if args.number("mtp-num-layers") else "one",
    }
    if found["attention"] == "latent":
        found["keys"], found["width"] = "all", "free"
    if has_experts:
        shared = numbers["shared_ffn"] or numbers["shared"]
        found["shared"] = ("gated" if args.has("moe-shared-expert-gate") else "plain") if shared else "no"
        is_sigmoid = args.text("moe-router-score-function", default="softmax") != "softmax"
        found["router"] = "sigmoid" if is_sigmoid else "presoftmax" if args.has("moe-router-pre-softmax") else "softmax"
    return found


def _attention(args: Arguments) -> str:
    if args.has("multi-latent-attention"):
        return "latent"
    if args.text("softmax-type", default="vanilla") != "vanilla" or args.has("enable-gpt-oss"):
        return "sinks"
    return "window" if args.has("window-size") else "usual"


def _experts(numbers: Mapping[str, Any]) -> str:
    dense = numbers["dense"]
    if not dense:
        return "all" if numbers["every"] < 2 else "some"
    return "first" if dense == [*range(len(dense))] else "some"


def _act(args: Arguments) -> str:
    if args.has("quick-geglu"):
        return "clamped" if args.has("activation-func-clamp-value") else "geglu"
    return "swiglu" if args.has("swiglu") else "relu2" if args.has("squared-relu") else "gelu"


def _position(args: Arguments) -> str:
    if args.has("use-rotary-position-embeddings"):
        return "rope"
    if args.has("multi-latent-attention") and not args.has("position-embedding-type"):
        return "rope"
    kind = args.text("position-embedding-type", default="learned_absolute")
    return {"learned_absolute": "learned"}.get(kind, kind if kind in FEATURES["position"].values else "learned")


def _norm(args: Arguments) -> str:
    if args.text("normalization", default="LayerNorm").lower() == "rmsnorm":
        return "RMSNorm"
    return "LayerNorm1p" if args.has("apply-layernorm-1p") else "LayerNorm"


def _rotary(args: Arguments) -> str:
    if _position(args) != "rope":
        return "whole"
    share = args.share("rotary-percent", default=1.0)
    return {1.0: "whole", 0.5: "half", 0.25: "quarter"}.get(share, "part")


def _dropout(numbers: Mapping[str, Any]) -> str:
    return "all" if numbers["hidden_dropout"] else "attention" if numbers["attention_dropout"] else "none"


def _distance(row: DescribedModel, found: Mapping[str, str]) -> int:
    """How unlike a model is to what the flags describe."""
    return sum(FEATURES[name].weight for name, value in found.items() if value not in row.values(name))


# -- the text of the model ---------------------------------------------------------------------------------------------


def _fitted(
    kind: DescribedModel, numbers: Mapping[str, Any], found: Mapping[str, str], args: Arguments
) -> dict[str, Any]:
    """The numbers as a model takes them: what it does not have is what it has instead, and what it has anyway is left
    out (None)."""

    def own(feature: str) -> str:
        value = found.get(feature, next(iter(FEATURES[feature].values)))
        return value if value in kind.values(feature) else kind.values(feature)[0]

    act, bias, head = own("act"), own("bias"), own("head")
    keys = numbers["keys"] if own("keys") == "grouped" or numbers["keys"] == numbers["heads"] else numbers["heads"]
    hidden_dropout = numbers["hidden_dropout"] if "all" in kind.values("dropout") else 0.0
    attention_dropout = numbers["attention_dropout"] if "attention" in kind.values("dropout") else 0.0
    usual_act = ACTS[kind.values("act")[0]] if kind.name != "gpt" else "gelu_new"
    layers = numbers["layers"]
    dense = numbers["dense"]
    is_free = own("width") == "free"
    experts = numbers["experts"]
    return {
        **numbers,
        "act": ACTS[act],
        "other_act": ACTS[act] if ACTS[act] != usual_act else None,
        "other_ffn": numbers["ffn"] if numbers["ffn"] != 4 * numbers["hidden"] else None,
        "keys": keys,
        "other_width": numbers["width"] if is_free else None,
        "other_epsilon": numbers["epsilon"] if numbers["epsilon"] != 1e-5 else None,
        "is_tied": head == "tied",
        "if_tied": True if head == "tied" else None,
        "if_untied": False if head == "untied" else None,
        "has_bias": bias == "all",
        "if_bias": True if bias == "all" else None,
        "has_qkv_bias": bias in ("qkv", "all"),
        "has_qk_norm": own("qk_norm") == "yes",
        "dropout": hidden_dropout or None,
        "hidden_dropout": hidden_dropout,
        "attention_dropout": attention_dropout,
        "if_attention_dropout": attention_dropout if attention_dropout != hidden_dropout else None,
        "is_normed": own("router") != "presoftmax",
        "has_balance": numbers["balance"] > 0,
        "dense_list": "-".join(map(str, dense)) if dense else None,
        "dense_layers": min(numbers["dense_layers"], layers) if experts else layers,
        "every": numbers["every"] if own("experts") == "some" else 1,
        "shared": max(numbers["shared"], 1),
        "if_shared": numbers["shared"] or None,
        "shared_ffn": numbers["shared_ffn"] or numbers["expert_ffn"],
        "experts": experts or None,
        "top": numbers["top"] if experts else None,
        "expert_ffn": numbers["expert_ffn"] if experts or kind.name in ("mixtral", "moe_gpt") else None,
    }


def _text(kind: DescribedModel, numbers: Mapping[str, Any]) -> str:
    """The value of `--model`."""
    words = []
    for option in kind.options.split():
        name, _, slot = option.partition("=")
        value = numbers[slot[1:-1]] if slot.startswith("{") else slot
        if value is not None:
            words.append(f"{name}={_shown(value)}")
    return f"{kind.name}{',' if kind.name.startswith('hf:') else ':'}{','.join(words)}"


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


# -- what became of the flags ------------------------------------------------------------------------------------------


def _said(
    kind: DescribedModel,
    text: str,
    found: Mapping[str, str],
    differing: list[str],
    numbers: Mapping[str, Any],
    args: Arguments,
    stages: int,
) -> dict[str, FlagOutcome]:
    """What became of each flag that describes the model."""
    written = [option.partition("=") for option in reversed(kind.options.split())]
    slots = {slot: name for name, _, slot in written}  # of several the first
    given = dict(word.split("=", 1) for word in text.replace(":", ",", 1).split(",")[1:] if "=" in word)
    verdicts: dict[str, FlagOutcome] = {}
    size, whose = _usual(args)
    for number, flags in SIZE_FLAGS.items():
        others = (number, f"other_{number}", *(("expert_ffn",) if number == "ffn" and not numbers["moe_ffn"] else ()))
        names = [slots[f"{{{slot}}}"] for slot in others if f"{{{slot}}}" in slots]
        shown = ", ".join(f"{name}={given[name]}" for name in names if name in given)
        verdict = _of_size(number, shown, kind, numbers, bool(names))
        verdicts |= dict.fromkeys(flags, verdict)
    if not numbers["has_vocab"]:
        verdicts["tokenizer-type"] = refused(f"its vocabulary is in a file: here {size}, as {whose}'s, padded")
    for name, value in found.items():
        feature = FEATURES[name]
        words = feature.values[value]
        if name in differing:
            here = feature.values[kind.values(name)[0]]
            verdict = refused(f"{words}: `{kind.name}` has {here}")
        else:
            verdict = became(f"`{kind.name}` of `--model`: {words}")
        for flag in feature.flags:
            if flag not in verdicts or (name in differing and flag not in SIZE_FLAGS["experts"]):
                verdicts[flag] = verdict
    if "act" not in differing and args.has("openai-gelu", "onnx-safe"):
        verdicts |= dict.fromkeys(("openai-gelu", "onnx-safe"), silent("how GELU is computed"))
    verdicts |= _of_dropout(kind, numbers)
    verdicts |= _of_losses(kind, args, stages, numbers)
    if found["keys"] == "all":
        own = silent("as many keys as heads: what it is without this flag")
        verdicts |= dict.fromkeys(("group-query-attention", "num-query-groups", "num-key-value-heads"), own)
        if args.has("num-query-groups") and not args.has("group-query-attention"):
            verdicts["num-query-groups"] = refused("ignored without a word, without `--group-query-attention`")
    elif "keys" not in differing:
        verdicts |= dict.fromkeys(FEATURES["keys"].flags, became(f"of `--model`: {slots['{keys}']}={numbers['keys']}"))
    if "width" not in differing and "{width}" not in slots:
        verdicts["kv-channels"] = silent("hidden / heads: what it is without this flag")
    if found["position"] == "rope" and "no-position-embedding" in verdicts and "position" not in differing:
        verdicts["no-position-embedding"] = silent("rotary positions replace learned ones")
    if not numbers["experts"]:
        of_experts = {*FEATURES["router"].flags, *FEATURES["shared"].flags, "moe-layer-freq", "expert-interval"}
        of_experts |= {flag for size in OF_EXPERTS for flag in SIZE_FLAGS[size]}
        verdicts |= dict.fromkeys(of_experts, refused("ignored: there are no experts"))
        verdicts["num-experts"] = silent("no experts")
        verdicts["mlp-type"] = silent("no experts")
    if len({*args.texts("num-experts")}) > 1:
        verdicts["num-experts"] = refused(f"one number of experts for all layers: {numbers['experts']}")
    elif kind.name == "moe_gpt" and not args.has("moe-expert-capacity-factor", "moe-train-capacity-factor"):
        verdicts["num-experts"] = became(
            f"of `--model`: experts={numbers['experts']}; each takes 1.25 times its share of tokens"
        )
    if kind is not BERT:
        verdicts["bert-no-binary-head"] = refused("no part of the model here")
    else:
        verdicts["bert-no-binary-head"] = became("of `--model`: the loss is that of masked words alone")
    for flag in ("mscale", "mscale-all-dim", "rotary-scaling-factor"):
        if args.share(flag, default=0.0) == 1.0:
            verdicts[flag] = silent("1: positions are not scaled")
    verdicts["mask-prob"] = silent("the data: `ssdsl run --data`, or a loader of your own")
    verdicts["spec"] = silent("the layers of Megatron's own code")
    verdicts["model-provider"] = silent("the function of Megatron that builds the model")
    verdicts["moe-use-legacy-grouped-gemm"] = silent("which kernel computes the same: `--kernels`")
    verdicts["num-channels"] = silent("3") if kind is IMAGES else refused("no part of the model here")
    return verdicts


def _of_size(number: str, shown: str, kind: DescribedModel, numbers: Mapping[str, Any], has_slot: bool) -> FlagOutcome:
    if shown:
        return became(f"of `--model`: {shown}")
    if number == "positions":
        return became("of `--model`: seq; positions behind the sequence are never used")
    if number == "ffn" and (has_slot or not kind.experts):
        return silent("4 x hidden: what it is without this flag")
    if number in ("epsilon", "theta") and has_slot:
        return silent("what it is without this flag")
    if number in ("epsilon", "theta"):
        return _of_constant(number, kind, numbers)
    if number == "shared_ffn" and "{shared}" in kind.options and numbers["shared_ffn"]:
        count, width = max(numbers["shared"], 1), numbers["expert_ffn"]
        if count * width == numbers["shared_ffn"]:
            return became(f"of `--model`: n_shared_experts={count}")
        return refused(f"n_shared_experts={count}: {count * width} wide, as it is so many others")
    if number == "query_rank" and has_slot:
        return became("of `--model`: q_lora_rank=none")
    return refused(f"no number of `{kind.name}`")


def _of_constant(number: str, kind: DescribedModel, numbers: Mapping[str, Any]) -> FlagOutcome:
    """Of a number that no option of a model sets: it changes what is computed, not how it is divided."""
    usual = {"theta": (10000,), "epsilon": (1e-5, 1e-6)}[number]
    if numbers[number] in usual and kind.name != "hf:gpt_oss":
        return silent("what it is without this flag, or next to it")
    if number == "theta" and "rope" not in kind.values("position"):
        return refused("ignored: positions are not rotary")
    return refused(f"a number that `{kind.name}` has of its own: the plan does not depend on it")


def _of_dropout(kind: DescribedModel, numbers: Mapping[str, Any]) -> dict[str, FlagOutcome]:
    found = {}
    for flag, number, value in (
        ("hidden-dropout", "hidden_dropout", "all"),
        ("attention-dropout", "attention_dropout", "attention"),
    ):
        if value in kind.values("dropout"):
            found[flag] = became(f"of `--model`: {flag.partition('-')[0]} dropout {_shown(numbers[number])}")
        elif numbers[number]:
            found[flag] = refused(f"`{kind.name}` has no such dropout")
        else:
            found[flag] = became(f"`{kind.name}` of `--model`: it has no such dropout")
    return found


def _of_losses(
    kind: DescribedModel, args: Arguments, stages: int, numbers: Mapping[str, Any]
) -> dict[str, FlagOutcome]:
    """What became of the losses of a router."""
    flags, found = SIZE_FLAGS["balance"], {}
    wants = _balance(args) > 0
    slots = ("{balance}", "{has_balance}")
    if not any(slot in kind.options for slot in slots):
        own = refused(f"`{kind.name}` has no loss of its router") if wants else silent("no loss of the router")
        found = dict.fromkeys(flags, own)
    elif wants and stages > 1:
        own = refused("a product of means over the batch, which no micro-batch of a pipeline knows (E0403)")
        found = dict.fromkeys(flags, own)
    elif not wants:
        found = dict.fromkeys(flags, silent("no loss of the router"))
    kinds = args.texts("moe-router-load-balancing-type")
    if any(word in ("sinkhorn", "quantile_balancing") for word in kinds):
        found["moe-router-load-balancing-type"] = refused("no way of routing that is here")
    if "{z_loss}" not in kind.options:
        found["moe-z-loss-coeff"] = refused(f"`{kind.name}` has no such loss")
    if "{capacity}" not in kind.options:
        found |= dict.fromkeys(SIZE_FLAGS["capacity"], refused(f"experts of `{kind.name}` take all tokens they get"))
    return found
