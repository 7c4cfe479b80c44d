"""The section of `docs/works.md` on the plans of transformers, from the results of the bench."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ssdsl.tp_plans.matching import wildcard

Found = Mapping[str, Any]
NAMES = 3  # of weights in a row
FRAMES = "too many", "missing in part", "missing"  # what may be wrong with a sum, the more telling first

INTRODUCTION = """\
## Plans of transformers

transformers {version} has plans in the configs of {count} types. `ssdsl import hf:TYPE` reads them. What each means
was compared with what a right program needs, and run. `python -m bench hfplans` makes this section: each type at a
small size (two layers, four heads, four experts; all else as by default), with random weights, on two devices.
"""
METHOD = """\
Imported as splits, a plan cannot be wrong, as the compiler adds what it does not say. So the collectives of
each style, forward and backward, are followed through the captured graph: a value is whole, cut or an addend on
each device, and so is its gradient. *missing*: the gradient of a weight is an addend, and nothing sums it. *too
many*: it is summed, and was whole. *stops*: an operator gets a part of what it needs all of, so that the
forward stops, or goes on with other numbers. Then transformers itself loads and runs the model, with torch
{torch}: `from_pretrained` with `DistributedConfig(tp_size=2)`, on two gloo processes, forward and backward in
float32, in eval mode, against one process. A gradient differs if it does by more than 0.2 % of its largest
number.
"""


def page(result: Mapping[str, Any]) -> str:
    """The section, in Markdown."""
    return "\n".join([*_lines(result["types"], result["transformers"], result["torch"])]) + "\n"


def _lines(types: list[Found], version: str, torch: str) -> Iterator[str]:
    tried = [one for one in types if not one.get("built") and not one.get("failed")]
    compared = [one for one in tried if "tp" in one["kinds"] and ("right" in one or "seen" in one)]
    yield from INTRODUCTION.format(version=version, count=len(types)).splitlines()
    yield ""
    yield from _counts(types, tried)
    yield ""
    yield from METHOD.format(torch=torch).splitlines()
    yield ""
    yield from _agreement(compared)
    yield ""
    yield from _findings(compared)
    yield ""
    yield from _left_out(types)


# -- counts ------------------------------------------------------------------------------------------------------------


def _counts(types: list[Found], tried: list[Found]) -> Iterator[str]:
    yield "| | types |"
    yield "|---|---|"
    yield f"| with a plan for tensors or experts | {len(types)} |"
    yield f"| built small, and run on one process | {len(tried)} |"
    captured = [one for one in tried if "captured" in one and not one["captured"]]
    yield f"| captured, so that the plan could be compared | {len(captured)} |"
    for widths, what in (("tp=2", "tensors"), ("ep=2,fsdp=2", "experts"), ("pp=2", "stages")):
        found = [one["imports"][widths] for one in tried if widths in one.get("imports", {})]
        imported = [one for one in found if not one["imported"]]
        proved = [one for one in imported if not one["proved"]]
        if found:
            count = f"{len(imported)} of {len(found)}; {len(proved)}"
            yield f"| imported with `{widths}` ({what}), of those tried; proved | {count} |"
    ignored = [one for one in tried if one.get("ignored")]
    yield f"| with entries that name nothing in the model | {len(ignored)} |"


def expected(one: Found) -> str:
    """What the comparison expects of a type's plan."""
    if "right" not in one:
        return "nothing: not captured"
    if one["forward"]:
        return "stops"
    sums = {*one["sums"].values()}
    return next((name for name in FRAMES if name in sums), "equal" if one["right"] else "follows")


def seen(one: Found) -> str:
    """What a run showed."""
    run = one.get("seen")
    if run is None:
        return "not run"
    if run["failed"]:
        return "stops"
    return "equal" if run["equal"] else "differs"


def _agreement(compared: list[Found]) -> Iterator[str]:
    count = Counter((expected(one), seen(one)) for one in compared)
    columns = [name for name in ("equal", "differs", "stops", "not run") if any(s == name for _, s in count)]
    rows = list(dict.fromkeys(sorted((e for e, _ in count), key=lambda e: e != "equal")))
    yield "| the comparison expects | " + " | ".join(f"a run: {name}" for name in columns) + " |"
    yield "|---" * (len(columns) + 1) + "|"
    for row in rows:
        yield f"| {row} | " + " | ".join(str(count[row, name] or "") for name in columns) + " |"


# -- findings ----------------------------------------------------------------------------------------------------------


def _findings(compared: list[Found]) -> Iterator[str]:
    yield "Each type for which one of the two is not equal, or whose weights load otherwise; no other was seen wrong:"
    yield ""
    yield "| type | the comparison expects | a run shows |"
    yield "|---|---|---|"
    for one in compared:
        if (expected(one), seen(one)) != ("equal", "equal") or one.get("seen", {}).get("loaded"):
            yield f"| `{one['type']}` | {_expects(one)} | {_shows(one)} |"


def _expects(one: Found) -> str:
    if one.get("forward"):
        return f"stops: {one['forward'][0]}"
    if "right" not in one:
        return expected(one)
    named = [name for name, by in one["sums"].items() if by in FRAMES]
    what = expected(one)
    because = f" ({one['backward'][0]})" if one["backward"] else ""
    return what if what == "equal" else f"{what}: {_names(named or one['sums'])}{because}"


def _shows(one: Found) -> str:
    run = one.get("seen")
    if run is None:
        return "not run"
    loaded = f"loads other numbers: {_names(run['loaded'])}" if run["loaded"] else ""
    if run["failed"]:
        return "; ".join(filter(None, (loaded, f"stops: {_cell(run['failed'])}")))
    if run["differ"]:
        worst = max(run["differ"].values())
        by = f"by up to {worst:.0%}" if worst < 100 else "beyond measure"
        loss = "" if abs(run["loss"] - run["right_loss"]) <= 2e-3 * abs(run["right_loss"]) else "; the loss, too"
        return "; ".join(filter(None, (loaded, f"differ {by}: {_names(run['differ'])}{loss}")))
    if not loaded:
        return "equal"
    if run.get("in_memory"):
        return f"{loaded}; with weights that are cut in memory, equal"
    return f"equal; its weights are in another order on two processes: {_names(run['loaded'])}"


def _names(names: Iterable[str]) -> str:
    """Weights in a few words."""
    found = list(dict.fromkeys(wildcard(name) for name in names))
    more = f" and {len(found) - NAMES} more" if len(found) > NAMES else ""
    return ", ".join(f"`{name}`" for name in found[:NAMES]) + more


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").partition(". Access")[0][:140]


def _left_out(types: list[Found]) -> Iterator[str]:
    """Yields what was not compared, or not proved, with reasons."""
    yield "Not compared or not proved, with reasons:"
    yield ""
    yield "| type | why |"
    yield "|---|---|"
    for one in types:
        reasons = []
        if why := one.get("built") or one.get("failed"):
            reasons.append(f"not built small: {_cell(why)}")
        if why := one.get("captured"):
            reasons.append(f"not captured: {_cell(why)}")
        for widths, found in one.get("imports", {}).items():
            if why := found["imported"]:
                reasons.append(f"`{widths}` not imported: {_cell(why)}")
            elif why := found["proved"]:
                reasons.append(f"`{widths}` not proved: {_cell(why)}")
        if reasons:
            yield f"| `{one['type']}` | {'; '.join(reasons)} |"
