"""One type of transformers: its plans imported and proved at a small size, compared with what a right program needs,
and run by transformers itself."""

import importlib
import re
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from bench.hfplans import theirs
from bench.hfplans.tiny import Unfit, small
from ssdsl.compile import compile_source
from ssdsl.importers.foreign import Foreign
from ssdsl.importers.transformers_plans import read
from ssdsl.lang.parse import parse
from ssdsl.lower.lower import lower
from ssdsl.model.captured import ModelRequest, captured
from ssdsl.model.graph import Graph
from ssdsl.model.load.hf import build
from ssdsl.model.load.hf_tasks import INPUTS, Example, NoExample, Sizes, tasks_of
from ssdsl.model.load.model import Model
from ssdsl.model.module_to_graph import capture
from ssdsl.plan.interpret import interpret_all
from ssdsl.plan.plan import Index
from ssdsl.plan.regions import Digit
from ssdsl.record import as_dict
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Source, Span
from ssdsl.tp_plans.entries import PlanKind, model_plans
from ssdsl.tp_plans.gradients import Meaning, Sum, meaning
from ssdsl.tp_plans.layouts import Mistake
from ssdsl.tp_plans.matching import wildcard

BATCH, SEQ, PIXELS = 4, 8, 32
SIZES = Sizes(BATCH, SEQ, SEQ - 2, PIXELS)
BASE = "base"  # the task of a type without a class that has a loss: the mean square of what it returns
WIDTHS = {PlanKind.TENSOR: "tp=2", PlanKind.EXPERTS: "ep=2,fsdp=2", PlanKind.STAGES: "pp=2"}
RUN_LIMIT_S = 60.0


class WithLoss(torch.nn.Module):
    """A model without a loss, and the mean square of the first tensor that it returns."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **batch: torch.Tensor) -> torch.Tensor:
        return self.model(**batch)[0].float().square().mean()


def try_type(kind: str, compare: bool, run: bool, imports: bool) -> dict[str, Any]:
    """What became of a type, as JSON."""
    import transformers

    found: dict[str, Any] = {"type": kind}
    try:
        task = next(iter(tasks_of(transformers, transformers.CONFIG_MAPPING[kind]())), BASE)
        found["task"] = task
        _, model = small(transformers, kind, lambda config: _model(transformers, kind, config, task))
    except Unfit as error:
        return {**found, "built": str(error)[:200]}
    except Exception as error:  # a config may raise anything
        lines = str(error).strip().splitlines() or [""]
        return {**found, "built": f"{type(error).__name__}: {lines[-1][:200]}"}
    found["built"] = ""
    plans = model_plans(model.module)
    plan = plans.merged[PlanKind.TENSOR]
    found["kinds"] = [str(k) for k in PlanKind if plans.merged[k] and k is not PlanKind.SHARDS]
    found["entries"] = len(plan)
    found["ignored"] = sorted(
        {e.name or e.key for e in plans.entries if e.kind is not PlanKind.STAGES and not (e.name and e.matches)}
    )
    with tempfile.TemporaryDirectory() as folder:
        theirs.disturbed(model.module)
        inner = model.module.model if task == BASE else model.module
        inner.save_pretrained(folder)
        if compare:
            found |= _compared(model, plan)
        if imports and task != BASE:
            found["imports"] = {w: _imported(folder, w) for k, w in WIDTHS.items() if plans.merged[k]}
        if run and plan:
            cls = type(inner)
            seen = theirs.seen(cls, Path(folder), model.batches[0], None, RUN_LIMIT_S)
            prefix = "model." if task == BASE else ""
            found["seen"] = {
                **as_dict(seen),
                "differ": {prefix + name: by for name, by in seen.differ.items()},
                "equal": seen.is_equal,
            }
    return found


def _model(library: Any, kind: str, config: Any, task: str) -> Model:
    """The model of a config for a task, which runs."""
    if task != BASE:
        model = build(kind, config, task, SIZES)
    else:
        from ssdsl.model.load.from_module import model_of

        inner = base_class(library, config)(config).float()
        draw = torch.Generator().manual_seed(0)
        name = getattr(type(inner), "main_input_name", "input_ids")
        if name not in INPUTS:
            raise NoExample(f"it takes `{name}`")
        inputs = INPUTS[name](Example(config, type(inner), SIZES, draw))
        model = model_of(
            WithLoss(inner), {name: inputs}, {name: ("batch", "seq")[: inputs.dim()]} if inputs.dim() == 2 else None
        )
    model.module(**model.batches[0])
    return model


def base_class(library: Any, config: Any) -> Any:
    """The class of models without a head for a config: that of `AutoModel`, or the first beside the config."""
    if type(config) in library.AutoModel._model_mapping:
        found = library.AutoModel._model_mapping[type(config)]
        return found[0] if isinstance(found, (tuple, list)) else found
    module = importlib.import_module(type(config).__module__.replace(".configuration_", ".modeling_"))
    named = [cls for cls in vars(module).values() if getattr(cls, "config_class", None) is type(config)]
    named += [cls for cls in vars(module).values() if _config_of(cls) is type(config) and cls not in named]
    models = [cls for cls in named if re.search(r"(?<!PreTrained)Model$|Encoder$", cls.__name__)]
    if not models:
        raise NoExample("no model is known for it")
    return models[0]


def _config_of(cls: Any) -> Any:
    """The class of the config that a class of models says in an annotation."""
    return getattr(cls, "__annotations__", {}).get("config") if isinstance(cls, type) else None


def _compared(model: Model, plan: Mapping[str, str]) -> dict[str, Any]:
    """What the tensor parallel plan makes of the model, and whether a program with the same cuts needs the same."""
    try:
        graph = capture(model)
    except PlanError as error:
        return {"captured": _first(error)}
    found = meaning(graph, plan)
    wrong = {name: str(by) for name, by in found.sums.items() if by is not Sum.RIGHT}
    return {
        "captured": "",
        "right": found.is_right,
        "sums": wrong,
        "forward": _told(found.forward),
        "backward": _told(found.backward),
        "needs": _needs(graph, found),
    }


def _told(mistakes: Iterable[Mistake]) -> list[str]:
    return list(dict.fromkeys(f"`{wildcard(m.module)}` {m.what}" for m in mistakes))


def _needs(graph: Graph, found: Meaning) -> str | list[str]:
    """The weights of which a program with the same cuts sums the gradient over the devices, and the plan does not, or
    the other way round: by name. A reason if there is no such program."""
    if found.forward:
        return "no program computes what its forward does"
    source = Source("cuts", "mesh gpus(tp = 2)\nassign model to gpus\n")
    span = Span(source, 0, 0)
    try:
        plan, _ = interpret_all(parse(source), graph, {}, None)
        cuts = {name: (Index("tp", dim, Digit(2), span),) for name, dim in found.cuts.items()}
        program = lower(plan.cutting(cuts))
    except PlanError as error:
        return _first(error)
    partial = {p.weight for p in program.params if "tp" in p.partial}
    missing = {name for name, by in found.sums.items() if by.is_missing}
    return sorted(wildcard(name) for name in missing - partial)


def _imported(folder: str, widths: str) -> dict[str, Any]:
    """What the importer says of a small model's plans, and whether the plan proves."""
    given = f"hf:{folder}/config.json,batch={BATCH},seq={SEQ},{widths}"
    try:
        found = read(Foreign(given, given))
    except PlanError as error:
        return {"imported": _first(error)}
    lists = {"said": len(found.said), "silent": len(found.silent)}
    refused = sorted({f"{item.written}: {item.becomes}" for item in found.refused})
    try:
        graph = captured(ModelRequest(found.model or "")).graph
        compile_source(Source("plan.ssp", found.text), graph, {}, None)
        proved = ""
    except PlanError as error:
        proved = _first(error)
    return {"imported": "", **lists, "refused": refused, "proved": proved}


def _first(error: PlanError) -> str:
    one = error.diagnostics[0]
    return f"{one.code}: {one.text(one.title)}"[:200]
