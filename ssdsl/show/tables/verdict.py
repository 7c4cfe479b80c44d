"""`ssdsl verify`: the table at its end, with how many tensors were compared and how far they were apart."""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ssdsl.show.view import Column, ColumnKind, View

if TYPE_CHECKING:
    from ssdsl.model.alter.altered import Altered
    from ssdsl.run.verify.against import Against
    from ssdsl.run.verify.compare import Comparison

COLUMNS = (
    Column("compared", style="bold cyan"),
    Column("tensors", ColumnKind.COUNT),
    Column("elements", ColumnKind.COUNT),
    Column("differ", ColumnKind.COUNT),
    Column("worst error", ColumnKind.SMALL),
    Column("of allowed", ColumnKind.SHARE),
    Column("in", fold=True),
)
PLURALS = {"loss": "losses", "gradient": "gradients", "weight": "weights", "buffer": "buffers"}


def verdict_view(comparisons: "tuple[Comparison, ...]") -> View:
    """A row per kind of tensor, with the tensor that came closest to its tolerance, or exceeded it most."""
    return View("compared with a single device", COLUMNS, _rows(comparisons), tuple(_notes(comparisons)))


def against_view(found: "Against") -> View:
    """The same of the tensors that another program saved, with what the file lacks."""
    notes = [*_notes(found.comparisons), *found.said]
    if found.lacking:
        counts = Counter(kind for kind, _ in found.lacking)
        lacks = ", ".join(f"{n} {PLURALS[kind] if n > 1 else kind}" for kind, n in counts.items())
        notes.append(f"not compared, as the file lacks them: {lacks}")
    return View(f"compared with {found.other.file}", COLUMNS, _rows(found.comparisons), tuple(notes))


def against_text(found: "Against") -> str:
    """The last line for a plan that computes what another program computed."""
    return f"equal: {sum(c.is_compared for c in found.comparisons)} tensors here and in {found.other.file}"


def against_json(found: "Against") -> dict[str, Any]:
    """The comparison with another program as JSON, with every tensor and its tolerance."""
    differ = sum(c.differs for c in found.comparisons)
    return {
        "file": found.other.file,
        "verdict": "different" if differ else "equal",
        "compared": sum(c.is_compared for c in found.comparisons),
        "differ": differ,
        "notes": [*found.said],
        "not_compared": [{"kind": kind, "name": name} for kind, name in found.lacking],
        "tensors": [_verdict_row(c) for c in found.comparisons],
    }


def _rows(comparisons: "tuple[Comparison, ...]") -> tuple[tuple[str | int | float, ...], ...]:
    kinds = dict.fromkeys((c.kind, c.in_float64) for c in comparisons)
    return tuple(_row([c for c in comparisons if (c.kind, c.in_float64) == kind]) for kind in kinds)


def equal_text(comparisons: "tuple[Comparison, ...]", devices: int, changes: "Altered | None" = None) -> str:
    """The last line for a plan that computes what one device computes, without tensors that are NaN on both."""
    from ssdsl.run.verify.verify import compared_steps  # which loads torch, as the comparisons did

    compared, steps = compared_steps(comparisons)
    count = sum(c.is_compared and not c.in_float64 for c in comparisons)
    text = f"equal: {count} tensors on {devices} devices and on one"
    if changes is not None and changes.types:
        text += ", in the types that the plan gives operators"
    if changes is not None and changes.compressed:
        text += ", with what the plan compresses"
    if compared == steps:
        return text
    return f"{text}; {compared} of {steps} steps compared, because the other losses are not finite on both"


def verdict_json(comparisons: "tuple[Comparison, ...]", devices: int) -> dict[str, Any]:
    """The verdict as JSON, with every tensor and its tolerance."""
    from ssdsl.run.verify.verify import compared_steps

    differ = sum(c.differs for c in comparisons)
    rows = [_verdict_row(c) for c in comparisons]
    verdict = "different" if differ else "equal" if compared_steps(comparisons)[0] else "not compared"
    compared = sum(c.is_compared for c in comparisons)
    return {"verdict": verdict, "devices": devices, "compared": compared, "differ": differ, "tensors": rows}


def _verdict_row(comparison: "Comparison") -> dict[str, Any]:
    c = comparison
    return {**_numbers(c), "allowed": c.allowed, "limit": c.limit, "differs": c.differs}


def _numbers(comparison: "Comparison") -> dict[str, Any]:
    """The fields of a comparison. NaN and infinity become texts, because JSON has neither."""
    fields = asdict(comparison).items()
    return {n: str(v) if isinstance(v, float) and not math.isfinite(v) else v for n, v in fields}


def _row(found: "list[Comparison]") -> tuple[str | int | float, ...]:
    """The row of one kind."""
    from ssdsl.run.verify.compare import worst_of

    worst = worst_of(found)
    differ, elements = sum(c.differs for c in found), sum(c.elements for c in found)
    kind = PLURALS[worst.kind] + (" in float64" if worst.in_float64 else "")
    relative = "rounding" if _is_rounding(worst) else worst.relative
    return kind, len(found), elements, differ, relative, worst.share, worst.name


def _is_rounding(comparison: "Comparison") -> bool:
    return comparison.is_rounding and not comparison.differs


def _notes(comparisons: "tuple[Comparison, ...]") -> Iterator[str]:
    """Notes on the meaning of the numbers, and on tensors of which they say little."""
    yield "worst error: relative to the largest element of its tensor; what is allowed and why: ssdsl explain E0512"
    if not any(c.differs and c.kind == "gradient" for c in comparisons):
        yield from _saturated([c for c in comparisons if not c.in_float64 and not c.differs])
    sharp = {(c.kind, c.name) for c in comparisons if c.is_sharp and not c.differs}
    dull = [c for c in comparisons if (c.kind, c.name) not in sharp and not c.in_float64 and not c.differs]
    if rounding := [c for c in dull if c.is_rounding]:
        yield f"all rounding, as if zero in exact arithmetic: {_named(rounding)}"
    if vacuous := [c for c in comparisons if not c.is_compared]:
        yield f"not compared, as NaN or infinite on both: {_named(vacuous)}"
    if unknown := [c for c in dull if c.limit == "unknown"]:
        yield f"not compared, as rounding alone makes them infinite or NaN: {_named(unknown)}"
    if coarse := [c for c in dull if not c.is_rounding and c.largest and c.limit != "unknown"]:
        percent = max(c.allowed / c.largest for c in coarse)
        yield f"rounding of up to {percent:.1%} of the largest element is allowed: {_named(coarse)}"


def _saturated(found: "list[Comparison]") -> Iterator[str]:
    """Notes that a step shows little: its loss is zero, or all of its gradients are, up to rounding."""
    advice = "so a mistake may not show; verify with a batch, labels or weights of a larger loss"
    losses, grads = ([c for c in found if c.kind == kind] for kind in ("loss", "gradient"))
    if none := [c for c in losses if c.expected == 0 or c.is_rounding]:
        yield f"zero, up to rounding: {_named(none)}; {advice}"
    elif grads and all(c.largest == 0 or c.is_rounding for c in grads):
        yield f"zero, up to rounding: every gradient; {advice}"


def _named(found: "list[Comparison]") -> str:
    more = f" and {len(found) - 1} more tensors" if len(found) > 2 else f" and {found[1].name}" if found[1:] else ""
    return f"{found[0].kind} {found[0].name}{more}"
