"""Reads the plans that transformers has for its models: `hf:TYPE,tp=4,ep=2,pp=2,fsdp=2`, or a `DistributedConfig` in
JSON. Facts as of transformers 5.24."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ssdsl.importers.errors import BadWidth, ConfigWithoutType, DistributedUnreadable, WidthsUnfit
from ssdsl.importers.foreign import Foreign
from ssdsl.importers.imported import Imported, Item
from ssdsl.importers.widths import Keeps, Net, PlanLines, Widths, plan_of
from ssdsl.lang.suggest import suggest
from ssdsl.record import Record, field, replace
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Source
from ssdsl.tp_plans.entries import ModelPlans, PlanEntry, PlanKind
from ssdsl.tp_plans.matching import wildcard
from ssdsl.tp_plans.styles import STYLES, WeightCut

if TYPE_CHECKING:
    from ssdsl.model.graph import Graph

PREFIX = "hf:"
SIZES = {"tp": "tp_size", "ep": "ep_size", "pp": "pp_size", "fsdp": "fsdp_size", "replicas": "dp_replicate_size"}
FILE = "plan"  # the word of `hf:TYPE,plan=FILE.json`
OVERRIDES = {"tp_plan": PlanKind.TENSOR, "ep_plan": PlanKind.EXPERTS, "fsdp_plan": PlanKind.SHARDS}
KEYS = {*SIZES.values(), *OVERRIDES}  # by which a file is recognised
# What else a DistributedConfig has: what becomes of it, if it is set.
SILENT = {
    "ep_implementation": "how rows reach their experts follows from the splits",
    "fsdp_mixed_precision": "of a run: `ssdsl run --precision bf16`, or `precision OPS to bf16` in the plan",
}
REFUSED = {
    "enable_sequence_parallel": "transformers does nothing with it yet; here: `sequence_parallel(model)` behind "
    "`tensor_parallel(model)`",
    "enable_expert_parallel": "out of use there: give `ep_size`, and an empty `tp_plan` to cut experts alone",
    "fsdp_cpu_offload": "add to the plan: `assign model.weights to host`",
}
SHALLOW = 4  # layers of the model whose operators tell what an entry cuts
ENOUGH = 10**7  # numbers; a model of fewer is looked at as it is


class _Asked(Record):
    """What a source asks for: the value of `--model`, sizes by their short names, entries that override the model's by
    kind, and what became of what was written: of each key its items."""

    model: str
    sizes: Mapping[str, int]
    written: Mapping[str, str]
    overrides: Mapping[PlanKind, Mapping[str, str]] = field(default_factory=dict)
    fields: tuple[str, ...] = ()
    silent: tuple[Item, ...] = ()
    refused: tuple[Item, ...] = ()

    def size(self, name: str) -> int:
        return self.sizes.get(name, 1)


def recognises(foreign: Foreign) -> bool:
    """Whether it is `hf:TYPE`, or a file with keys of a DistributedConfig."""
    if foreign.path is None:
        return foreign.given.startswith(PREFIX)
    if not foreign.text.lstrip().startswith("{"):
        return False
    try:
        found = json.loads(foreign.text)
    except ValueError:
        return False
    return isinstance(found, dict) and bool(KEYS & {*found, *_nested(found)})


def read(foreign: Foreign) -> Imported:
    """The plan that says what a model's plans say at these widths. Raises PlanError."""
    asked = _of_file(foreign, None) if foreign.path is not None else _of_words(foreign)
    module, plans = _built(asked)
    asked = _with_default(asked, plans)
    widths = _widths(asked, plans)
    net = Net(asked.model, plans.layers, _experts(plans) if widths.experts > 1 else None)
    kind = asked.model.removeprefix(PREFIX).partition(",")[0]
    lines = plan_of(widths, net, _comments(kind, asked))
    cuts = _cut_by_tensor_parallel(asked, plans, module) if widths.tensor > 1 else {}
    said, silent, refused = list[Item](), list(asked.silent), list(asked.refused)
    said += _said_sizes(asked, lines)
    for entry in _with_overrides(asked, plans):
        which, because = _becomes(entry, asked, lines, cuts)
        {"said": said, "silent": silent, "refused": refused}[which].append(Item(_written(entry), because))
    refused += _unplanned(asked, plans)
    what = f"the type `{kind}` of transformers, with its plans"
    return Imported(what, lines.text, tuple(said), tuple(silent), tuple(refused), asked.model)


# -- what is asked for -------------------------------------------------------------------------------------------------


def _of_words(foreign: Foreign) -> _Asked:
    """What `hf:TYPE,field=value,tp=4` asks for."""
    from ssdsl.model.load.spec import read_spec

    named = re.search(rf",{FILE}=(.*?\.json|[^,]*)(?=,|$)", foreign.given)  # a path may have commas in it
    file = named[1] if named else None
    spec = read_spec(Source("SOURCE", foreign.given.replace(named[0], "", 1) if named else foreign.given))
    if not spec.words or "=" in spec.words[0].text:
        raise PlanError(ConfigWithoutType(None, foreign.given, "no type stands behind `hf:`"))
    sizes, written, fields = dict[str, int](), dict[str, str](), list[str]()
    for word in spec.words:
        if word.option in SIZES and "=" in word.text:
            sizes[word.option] = _size(word.option, word.value)
            written[word.option] = word.text
        else:
            fields.append(word.text)
    model = PREFIX + ",".join(fields)
    if file is None:
        return _Asked(model, sizes, written, fields=tuple(fields[1:]))
    try:
        inner = Foreign(file, Path(file).read_text("utf-8"), Path(file))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise PlanError(DistributedUnreadable(None, file, reason.lower())) from None
    asked = _of_file(inner, model)
    return replace(
        asked, sizes={**asked.sizes, **sizes}, written={**asked.written, **written}, fields=tuple(fields[1:])
    )


def _size(name: str, value: Any) -> int:
    text = str(value)
    if not text.isdigit() or int(text) < 1:
        raise PlanError(BadWidth(None, name, text))
    return int(text)


def _nested(found: Mapping[str, Any]) -> Mapping[str, Any]:
    """The DistributedConfig that a model's config has in it."""
    inner = found.get("distributed_config")
    return inner if isinstance(inner, dict) else {}


def _of_file(foreign: Foreign, model: str | None) -> _Asked:
    """What a file asks for: a DistributedConfig with the model's type in it, or a model's config with one in it."""
    try:
        found = json.loads(foreign.text)
    except ValueError as error:
        raise PlanError(DistributedUnreadable(None, foreign.given, f"it is no JSON: {error}")) from None
    if not isinstance(found, dict):
        raise PlanError(DistributedUnreadable(None, foreign.given, "it is no object with keys"))
    kind, inner = found.get("model_type"), _nested(found)
    if model is None and not isinstance(kind, str):
        raise PlanError(ConfigWithoutType(None, foreign.given, "the file has no `model_type`"))
    if model is None:
        model = f"{PREFIX}{foreign.given}" if inner else f"{PREFIX}{kind}"
    own = dict(inner) if inner else {key: value for key, value in found.items() if key != "model_type"}
    return _of_keys(own, model, [] if inner or kind is None else [f'"model_type": "{kind}"'])


def _of_keys(given: Mapping[str, Any], model: str, fields: list[str]) -> _Asked:
    """What the keys of a DistributedConfig ask for."""
    sizes, written = dict[str, int](), dict[str, str]()
    overrides = dict[PlanKind, Mapping[str, str]]()
    silent, refused = list[Item](), list[Item]()
    names = {key: name for name, key in SIZES.items()}
    for key, value in given.items():
        shown = f'"{key}": {json.dumps(value)}'
        if key not in KEYS | SILENT.keys() | REFUSED.keys():
            near = suggest(key, [*KEYS, *SILENT, *REFUSED])
            reason = "transformers drops this key without a word" + (f": {near}" if near else "")
            refused.append(Item(shown, reason))
        elif value is None or value is False or value == "auto":
            silent.append(Item(shown, "this is the default"))
        elif key in names:
            sizes[names[key]] = _size(key, value)
            written[names[key]] = shown
        elif key in OVERRIDES and isinstance(value, dict):
            overrides[OVERRIDES[key]] = {str(name): str(style) for name, style in value.items()}
            if not value:
                silent.append(Item(shown, "no rule of tensor parallelism" if key == "tp_plan" else "nothing in it"))
        elif key in SILENT:
            silent.append(Item(shown, SILENT[key]))
        else:
            reason = REFUSED.get(key, "it is no object with names and styles")
            refused.append(Item(shown, reason))
    return _Asked(model, sizes, written, overrides, tuple(fields), tuple(silent), tuple(refused))


def _with_default(asked: _Asked, plans: ModelPlans) -> _Asked:
    """The request with a width of two, of what the model has a plan for, where none is asked for."""
    if any(size > 1 for size in asked.sizes.values()) or asked.sizes:
        return asked
    return replace(asked, sizes={"tp" if plans.merged[PlanKind.TENSOR] else "fsdp": 2})


def _built(asked: _Asked) -> tuple[Any, ModelPlans]:
    """The model without its numbers, and its plans. Raises PlanError."""
    from ssdsl.model.load import load
    from ssdsl.tp_plans.entries import model_plans

    module = load(asked.model, meta=True).module
    return module, model_plans(module)


# -- the plan ----------------------------------------------------------------------------------------------------------


def _widths(asked: _Asked, plans: ModelPlans) -> Widths:
    """The widths of a request. Raises PlanError if transformers has no mesh for them."""
    tensor, experts, stages = asked.size("tp"), asked.size("ep"), asked.size("pp")
    shards, replicas = asked.size("fsdp"), asked.size("replicas")
    if experts > 1 and (experts % tensor or (shards * tensor) % experts):
        raise PlanError(WidthsUnfit(None, experts, tensor, shards))
    before = None
    if stages > 1 and plans.count % stages and plans.count > stages:
        each, more = divmod(plans.count, stages)  # the first stages have one more
        before = tuple(s * each + min(s, more) for s in range(1, stages))
    return Widths(
        data=shards * replicas,
        shards=shards if replicas > 1 and shards > 1 else 0,
        tensor=tensor,
        experts=experts,
        expert_tensor=1 if experts > 1 and tensor > 1 else 0,
        stages=stages,
        before=before,
        state=Keeps.WEIGHTS if shards > 1 else None,
    )


def _experts(plans: ModelPlans) -> str | None:
    """The path of the modules whose experts are divided."""
    found = plans.merged[PlanKind.EXPERTS]
    return next((name for name, style in found.items() if style == "ep_dispatch_experts" and name in plans.names), None)


def _comments(kind: str, asked: _Asked) -> tuple[str, ...]:
    if asked.written:
        return ()
    return (f"No width was asked for: `ssdsl import {asked.model},tp=4`, or --set, changes it.",)


def _said_sizes(asked: _Asked, lines: PlanLines) -> Iterator[Item]:
    """Yields what became of widths and of fields of the config."""
    for text in asked.fields:
        yield Item(text, "a part of `--model`")
    says = {"tp": "tensor", "ep": "experts", "pp": "stages", "fsdp": "state", "replicas": "data"}
    for name, text in asked.written.items():
        yield Item(text, lines.saying(says[name]) if asked.size(name) > 1 else "one device: no axis of the mesh")


def _unplanned(asked: _Asked, plans: ModelPlans) -> Iterator[Item]:
    """Yields the widths for which the model has no plan."""
    for kind in PlanKind:
        if asked.size(kind) > 1 and not plans.merged[kind] and kind is not PlanKind.STAGES:
            text = asked.written.get(kind, f"{kind}={asked.size(kind)}")
            yield Item(text, "the model has no plan for it, and transformers starts nothing; here the plan says it")


# -- entries -----------------------------------------------------------------------------------------------------------


def _with_overrides(asked: _Asked, plans: ModelPlans) -> Iterator[PlanEntry]:
    """Yields the entries of the model and those of the request, which come before the model's with the same name."""
    for entry in plans.entries:
        own = asked.overrides.get(entry.kind)
        is_emptied = entry.kind is PlanKind.TENSOR and own == {}  # as transformers takes an empty `tp_plan`
        yield replace(entry, at=OVERRIDDEN) if is_emptied or entry.name in (own or ()) else entry
    for kind, own in asked.overrides.items():
        for name, style in own.items():
            yield PlanEntry(kind, name, style, "the request", name, name in plans.names)


OVERRIDDEN = "the request overrides it"


def _written(entry: PlanEntry) -> str:
    return f"{entry.kind}: {entry.name or entry.key}: {entry.style}"


def _becomes(entry: PlanEntry, asked: _Asked, lines: PlanLines, cuts: Mapping[str, tuple[str, ...]]) -> tuple[str, str]:
    """The list of an entry, and what it became or why it did not."""
    if entry.at == OVERRIDDEN:
        return "silent", OVERRIDDEN
    if not entry.name:
        return "refused", f"no part of this model takes it: it stands in {entry.at}"
    if entry.kind is not PlanKind.STAGES and not entry.matches:
        return "refused", "it names nothing in this model: transformers leaves it out"
    if asked.size(entry.kind) == 1:
        return "silent", f"it takes effect with {entry.kind}=N"
    match entry.kind:
        case PlanKind.TENSOR:
            return _tensor(entry, asked, lines, cuts)
        case PlanKind.EXPERTS:
            if entry.style in ("ep_dispatch_experts", "grouped_gemm"):
                return "said", lines.saying("experts") or "no experts are divided"
            return "refused", f"`{entry.style}` is no style of experts: transformers refuses it"
        case PlanKind.STAGES:
            note = "transformers reads no entry, and cuts the list of layers"
            return "said", f"{lines.saying('before') or lines.saying('stages')}  ({note})"
        case PlanKind.SHARDS:
            if entry.style == "free_full_weight":
                return "said", lines.saying("state")
            keep = f'keep model["{entry.name}"].weights through step'
            return "refused", f"weights are gathered again for backward; `{keep}` keeps them"


def _tensor(entry: PlanEntry, asked: _Asked, lines: PlanLines, cuts: Mapping[str, tuple[str, ...]]) -> tuple[str, str]:
    """What an entry of the tensor parallel plan becomes: the line that cuts what it names, by which dimensions."""
    style, line = STYLES.get(entry.style), lines.saying("tensor")
    if style is None:
        return "refused", f"`{entry.style}` is a style that no plan of transformers has" + _near(entry.style)
    if asked.size("ep") > 1 and "experts" in entry.name.split("."):
        return "silent", "experts are divided, and not cut: transformers leaves such entries out, too"
    names = cuts.get(entry.name)
    if style.cut is WeightCut.WHOLE or (names is None and not cuts):
        return "said", f"{line}: what it sums follows from the splits" if style.cut is WeightCut.WHOLE else line
    if not names:
        return (
            "refused",
            f"no line cuts it: `tensor_parallel(model)` finds no heads, ffn or vocab of {asked.size('tp')} parts",
        )
    return "said", f"{line}: {', '.join(names)}"


def _near(style: str) -> str:
    near = suggest(style, STYLES)
    return f": {near}" if near else ""


def _cut_by_tensor_parallel(asked: _Asked, plans: ModelPlans, module: Any) -> dict[str, tuple[str, ...]]:
    """The dimensions by which `tensor_parallel(model)` cuts what each entry names; nothing if the model cannot be
    looked at. A deep model is looked at with fewer layers."""
    from ssdsl.compile import make_plan
    from ssdsl.model.graph import Origin

    graph = _graph(asked, plans, module)
    if graph is None:
        return {}
    text = f"use tensor_parallel: tensor_parallel\nmesh gpus(tp = {asked.size('tp')})\ntensor_parallel(model)\n"
    try:
        plan, _ = make_plan(Source("tensor_parallel", f"{text}assign model to gpus\n"), graph, {}, None)
    except PlanError:
        return {}
    found: dict[str, dict[str, None]] = {}
    for operator in graph.computing:
        indices = [i for i in plan.of(operator.name).indices if i.name.startswith("tp")]
        weights = [operand for operand in operator.inputs if graph.values[operand.value].origin is Origin.WEIGHT]
        for operand in weights:
            names = [operator.dims[i.dim].name for i in indices if operand.carries(i.dim)]
            for name in (wildcard(operand.value), wildcard(operand.value).rpartition(".")[0]):
                found.setdefault(name, {}).update(dict.fromkeys(names))
    return {name: tuple(names) for name, names in found.items()}


def _graph(asked: _Asked, plans: ModelPlans, module: Any) -> "Graph | None":
    """The graph of the model, or of one with fewer layers; None if neither can be captured."""
    from ssdsl.model.captured import ModelRequest, captured

    few = f"{asked.model},num_hidden_layers={SHALLOW}"
    deep = plans.count > SHALLOW and sum(p.numel() for p in module.parameters()) > ENOUGH
    for spec in [few, asked.model] if deep and "num_hidden_layers=" not in asked.model else [asked.model]:
        try:
            return captured(ModelRequest(spec)).graph
        except PlanError:
            continue
    return None
