"""Which modules and weights of a model the entries of a plan of transformers name: `*` stands for a number."""

import re
from collections.abc import Iterable, Mapping

from ssdsl.model.graph import Graph, Origin
from ssdsl.tp_plans.styles import STYLES, Leaves, Style, Takes


def wildcard(name: str) -> str:
    """A name with `*` for each number between dots, as transformers writes entries.

    >>> wildcard("layers.0.mlp.w1.3"), wildcard("layers.11")
    ('layers.*.mlp.w1.*', 'layers.*')
    """
    return re.sub(r"\.\d+(?=\.|$)", ".*", name)


def module_of(path: str) -> str:
    """The name of the module at a path of the graph, in which later calls of a module have numbers.

    >>> module_of("trunk#2.fc")
    'trunk.fc'
    """
    return re.sub(r"#\d+", "", path)


def entry_of(plan: Mapping[str, str], name: str, *, is_weight: bool) -> str | None:
    """The entry that a module or a weight takes: its own; a weight also that of its module."""
    own = wildcard(name)
    if own in plan:
        return own
    parent = own.rpartition(".")[0]
    return parent if is_weight and parent in plan else None


def weight_style(plan: Mapping[str, str], weight: str) -> Style | None:
    """The style that cuts a weight."""
    entry = entry_of(plan, weight, is_weight=True)
    return None if entry is None else STYLES.get(plan[entry])


def modules_of(graph: Graph) -> set[str]:
    """The modules of which a graph has calls or weights, and all that these are in."""
    names = [module_of(o.path) for o in graph.operators]
    names += [v.name.rpartition(".")[0] for v in graph.values.values() if v.origin in (Origin.WEIGHT, Origin.BUFFER)]
    return {".".join(words[:n]) for words in (name.split(".") for name in names) for n in range(1, len(words) + 1)}


def styled_modules(graph: Graph, plan: Mapping[str, str]) -> dict[str, Style]:
    """The modules whose beginning or end a style changes."""
    found = {name: plan[entry] for name in modules_of(graph) if (entry := entry_of(plan, name, is_weight=False))}
    styles = {name: STYLES[style] for name, style in sorted(found.items()) if style in STYLES}
    return {n: s for n, s in styles.items() if (s.takes, s.leaves) != (Takes.AS_IT_IS, Leaves.AS_IT_IS) or s.sums}


def unmatched(plan: Mapping[str, object], names: Iterable[str]) -> list[str]:
    """The entries that name none of these modules and weights."""
    known = {wildcard(name) for name in names}
    return [entry for entry in plan if entry not in known]
