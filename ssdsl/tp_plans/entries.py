"""The plans that a model of transformers has for tensors, experts, stages and shards: where each entry is written, and
what it names in the model."""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

from ssdsl.record import Record
from ssdsl.tp_plans.matching import wildcard

LAYER = "layers"


class PlanKind(StrEnum):
    """A plan of a model of transformers."""

    TENSOR = "tp"
    EXPERTS = "ep"
    STAGES = "pp"
    SHARDS = "fsdp"

    @property
    def attribute(self) -> str:
        """The attribute of classes, and of a model with all entries of its parts."""
        return f"_{self}_plan"


class PlanEntry(Record):
    """An entry of a plan. `name` is what it names in the whole model, "" if no part of the model takes it; `at` is the
    class in which it stands; with `matches` a module or a weight has the name."""

    kind: PlanKind
    key: str
    style: str
    at: str
    name: str = ""
    matches: bool = False


class ModelPlans(Record):
    """The plans of a model: `merged` are those that transformers applies, by kind; `entries` all that are written, in
    order. `names` are the modules and weights with `*` for numbers, `layers` the path of its list of layers."""

    merged: Mapping[PlanKind, Mapping[str, Any]]
    entries: tuple[PlanEntry, ...]
    names: frozenset[str]
    layers: str | None
    count: int


def model_plans(module: Any) -> ModelPlans:
    """The plans of a model of transformers: an instance of `PreTrainedModel`, or a module that has one."""
    names = frozenset(
        wildcard(name) for named in (module.named_modules(), module.named_parameters()) for name, _ in named
    )
    prefix, model = _model_of(module)
    merged = {
        kind: {f"{prefix}{key}": style for key, style in (getattr(model, kind.attribute, None) or {}).items()}
        for kind in PlanKind
    }
    entries = dict.fromkeys(_entries(module, merged, names))
    layers, count = _layers(module)
    return ModelPlans(merged, tuple(entries), names, layers, count)


def is_transformer(module: Any) -> bool:
    """Whether a module is a model of transformers, or has one."""
    return any(hasattr(part, "init_parallel_plans") for part in module.modules())


def _model_of(module: Any) -> tuple[str, Any]:
    """The outermost model of transformers in a module, and the path in front of its names."""
    found = (item for item in module.named_modules() if hasattr(item[1], "init_parallel_plans"))
    name, model = next(found, ("", module))
    return f"{name}." if name else "", model


def _layers(module: Any) -> tuple[str | None, int]:
    """The path of the longest list of layers, as in a plan (`model.layers.*`), and how many it has."""
    lists = [(name, len(child)) for name, child in module.named_modules() if name.rpartition(".")[2] == LAYER]
    name, count = max(lists, key=lambda item: item[1], default=("", 0))
    return (f"{name}.*", count) if name and "." not in _inside(name) else (None, 0)


def _inside(name: str) -> str:
    """ "" for a path without numbers."""
    return "." if any(word.isdigit() for word in name.split(".")) else ""


def _entries(module: Any, merged: Mapping[PlanKind, Mapping[str, Any]], names: frozenset[str]) -> Iterator[PlanEntry]:
    """Yields each entry of each part's class and config, then those that transformers adds."""
    seen: set[tuple[PlanKind, str]] = set()
    for path, part in module.named_modules():
        if not hasattr(part, "init_parallel_plans"):
            continue
        prefix = f"{wildcard(path)}." if path else ""
        for kind in PlanKind:
            for at, plan in _written(part, kind):
                for key, style in plan.items():
                    name = f"{prefix}{key}"
                    taken = merged[kind].get(name) == style
                    seen.add((kind, name))
                    yield PlanEntry(kind, key, _shown(style), at, name if taken else "", name in names)
    for kind, plan in merged.items():
        for name, style in plan.items():
            if (kind, name) not in seen:
                yield PlanEntry(kind, name, _shown(style), "transformers itself", name, name in names)
    yield from _unread(module, merged)


def _written(part: Any, kind: PlanKind) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields the plans that a model's class and its config say."""
    own = type(part).__dict__.get(kind.attribute) or getattr(type(part), kind.attribute, None)
    if own:
        yield type(part).__name__, own
    base = getattr(part.config, f"base_model_{kind}_plan", None)
    if base and part.base_model is part:
        yield type(part.config).__name__, base


def _unread(module: Any, merged: Mapping[PlanKind, Mapping[str, Any]]) -> Iterator[PlanEntry]:
    """Yields the entries of configs in the model's config that no part of the model has."""
    _, model = _model_of(module)
    used = {id(part.config) for _, part in module.named_modules() if hasattr(part, "init_parallel_plans")}
    used |= {id(type(part.config)) for _, part in module.named_modules() if hasattr(part, "init_parallel_plans")}
    config = getattr(model, "config", None)
    for name in getattr(config, "sub_configs", {}):
        sub = getattr(config, name, None)
        if sub is None or id(sub) in used or id(type(sub)) in used:
            continue
        for kind in PlanKind:
            for key, style in (getattr(sub, f"base_model_{kind}_plan", None) or {}).items():
                yield PlanEntry(kind, key, _shown(style), f"{type(sub).__name__}, the model's {name}")


def _shown(style: Any) -> str:
    """A style as it is written; of a stage its inputs and outputs."""
    if isinstance(style, str):
        return style
    return " -> ".join(", ".join(part) if isinstance(part, (list, tuple)) else str(part) for part in style)
