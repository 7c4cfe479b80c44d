"""Whether a finished run computed what a single device computes: every loss, gradient, weight and buffer."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ssdsl.model.source import Model
from ssdsl.run.assemble import Spread, Whole, assemble
from ssdsl.run.compare import FACTOR, Comparison, Limit, compare
from ssdsl.run.errors import PiecesDisagree, PiecesIncomplete, ResultMissing, RunDiffers
from ssdsl.run.growth import largest_of, measured_growth
from ssdsl.run.launch import Training
from ssdsl.run.reference import Tensors, Trained, reference
from ssdsl.run.result import RunResult
from ssdsl.text.diagnostic import PlanError

RUNS = 4
MORE_RUNS = 16
Name = tuple[str, str]  # of a comparison: its kind and name


def verify(model: Model, training: Training, result: RunResult) -> tuple[Comparison, ...]:
    """Compare a run that was launched with `dump` with the single device.

    Raises PlanError where the ranks' pieces are incomplete or copies disagree; whether numbers differ is in the result.
    """
    dumps = {r.rank: _load(result.out, r.rank) for r in result.ranks}
    return verify_dumps(model, training, result.losses, dumps)


def verify_dumps(
    model: Model, training: Training, losses: tuple[float, ...], dumps: Mapping[int, Any]
) -> tuple[Comparison, ...]:
    """Compare what the ranks dumped with the single device; raises as `verify` does."""
    model = model.with_numbers()
    plan, spreads = _trained(model, training.steps, losses, dumps)
    follow = plan.grads if training.optimizer == "adamw" else None
    single = _without_idle(reference(model, training, follow), plan, model)
    _check_names(plan, single)
    growth = measured_growth(model, training, single, follow, range(RUNS))
    found = compare(plan, single, growth)
    if any(c.differs for c in found) or _disagreement(found, spreads):  # before a plan is called wrong
        growth = largest_of([growth, measured_growth(model, training, single, follow, range(RUNS, MORE_RUNS))])
        found = compare(plan, single, growth)
    if disagreement := _disagreement(found, spreads):
        raise PlanError(disagreement)
    return found


def _disagreement(comparisons: tuple[Comparison, ...], spreads: Mapping[Name, Spread]) -> PiecesDisagree | None:
    """Two copies that are further apart than what they are copies of may be from the single device's."""
    allowed = {(c.kind, c.name): c.allowed for c in comparisons}
    for (kind, name), spread in spreads.items():
        if not spread.error <= allowed.get((kind, name), 0.0):
            step, _, tensor = name.rpartition(" ")
            what = f"{step}'s {kind}" if step else kind
            values = str(list(spread.index)), spread.first_value, spread.second_value
            return PiecesDisagree(None, what, tensor, spread.first, spread.second, *values)
    return None


def difference(comparisons: tuple[Comparison, ...]) -> RunDiffers | None:
    """The first tensor that differs."""
    wrong = [c for c in comparisons if c.differs]
    if not wrong:
        return None
    first = wrong[0]
    summary = f"{len(wrong)} of {len(comparisons)} tensors differ"
    where = f"largest error {first.error:.3g} at {list(first.index)}"
    return RunDiffers(None, first.kind, first.name, where, first.got, first.expected, reason(first), summary)


def reason(comparison: Comparison) -> str:
    """What a tensor may be off by, and what decides that."""
    match comparison.limit:
        case Limit.ZERO:
            return "it is zero in every element, so it is missing"
        case Limit.GROWTH:
            return f"allowed: {comparison.allowed:.3g}, {FACTOR:g} times the measured growth of rounding errors"
        case Limit.ROUNDING:
            largest = f"the largest element is {comparison.largest:.3g}"
            return f"allowed: {comparison.allowed:.3g}, the rounding of a sum ({largest})"


def _without_idle(single: Trained, plan: Trained, model: Model) -> Trained:
    """Leave out what no operator reads, so that no rank holds it, if the single device did not change it either."""
    start = {**dict(model.module.named_parameters()), **dict(model.module.named_buffers())}
    held = {**plan.weights, **plan.buffers}

    def kept(tensors: Tensors) -> Tensors:
        return {n: t for n, t in tensors.items() if n in held or not torch.equal(t, start[n])}

    return replace(single, weights=kept(single.weights), buffers=kept(single.buffers))


def _trained(
    model: Model, steps: int, losses: tuple[float, ...], dumps: Mapping[int, Any]
) -> tuple[Trained, dict[Name, Spread]]:
    """What the ranks hold, put together, and how far their copies differ; tensors by the module's own names."""
    names = _canonical(model.module)
    grads = [
        _whole(names, f"step {step}'s gradient", {rank: dump["grads"][step] for rank, dump in dumps.items()})
        for step in range(steps)
    ]
    weights = _whole(names, "weight", {rank: dump["weights"] for rank, dump in dumps.items()})
    buffers = _whole(names, "buffer", {rank: dump["buffers"] for rank, dump in dumps.items()})
    for name, _ in model.module.named_parameters():  # a program keeps what it does not train among the buffers
        if name in buffers.tensors:
            weights.tensors[name] = buffers.tensors.pop(name)
        if name in buffers.spreads:
            weights.spreads[name] = buffers.spreads.pop(name)
    spreads: dict[Name, Spread] = {}
    for step, whole in enumerate(grads):
        spreads |= {("gradient", f"step {step} {name}"): spread for name, spread in whole.spreads.items()}
    spreads |= {("weight", name): spread for name, spread in weights.spreads.items()}
    spreads |= {("buffer", name): spread for name, spread in buffers.spreads.items()}
    return Trained(losses, tuple(g.tensors for g in grads), weights.tensors, buffers.tensors), spreads


def _whole(names: Mapping[str, str], what: str, ranks: Mapping[int, Mapping[str, Any]]) -> Whole:
    """The tensors in full; pieces under any of a tied weight's names are pieces of the one."""
    return assemble(what, {rank: {names.get(n, n): piece for n, piece in held.items()} for rank, held in ranks.items()})


def _canonical(module: torch.nn.Module) -> dict[str, str]:
    """From every name of a weight or buffer to its first."""
    first: dict[int, str] = {}
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    return {name: first.setdefault(id(tensor), name) for name, tensor in named}


def _load(out: Path, rank: int) -> Any:
    path = out / f"rank{rank}.pt"
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise PlanError(ResultMissing(None, rank, path.name, str(error))) from error


def _check_names(plan: Trained, single: Trained) -> None:
    """Every tensor of the single device must be held by some rank, in full shape."""
    found = [
        *(
            p
            for step, grads in enumerate(single.grads)
            for p in _missing(f"step {step}'s gradient", plan.grads[step], grads)
        ),
        *_missing("weight", plan.weights, single.weights),
        *_missing("buffer", plan.buffers, single.buffers),
    ]
    if found:
        raise PlanError(
            *found[:5], *([replace(found[5], reason=f"and {len(found) - 5} more")] if len(found) > 5 else [])
        )


def _missing(what: str, plan: Tensors, single: Tensors) -> list[PiecesIncomplete]:
    found = []
    for name, tensor in single.items():
        if name not in plan:
            found.append(PiecesIncomplete(None, what, name, "no rank holds a piece of it"))
        elif plan[name].shape != tensor.shape:
            shapes = f"the ranks hold {list(plan[name].shape)} and the module {list(tensor.shape)}"
            found.append(PiecesIncomplete(None, what, name, shapes))
    return found
