"""Whether a finished run computed what a single device computes: every loss, gradient, weight and buffer."""

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ssdsl.model.source import Model
from ssdsl.run.assemble import assemble
from ssdsl.run.compare import Comparison, compare
from ssdsl.run.errors import PiecesIncomplete, ResultMissing, RunDiffers
from ssdsl.run.launch import Training
from ssdsl.run.precision import autocast_off, autocast_seen
from ssdsl.run.reference import Tensors, Trained, reference
from ssdsl.run.result import RunResult
from ssdsl.text.diagnostic import PlanError


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
    plan = _trained(model, training.steps, losses, dumps)
    follow = plan.grads if training.optimizer == "adamw" else None
    with autocast_seen() as seen:
        single = reference(model, training, follow)
    exact = None
    if seen or any(p.dtype in (torch.bfloat16, torch.float16) for p in model.module.parameters()):
        with autocast_off():
            exact = reference(_in_float32(model), training, follow)
    single = _without_idle(single, plan, model)
    _check_names(plan, single)
    return compare(plan, single, training.lr, exact)


def _in_float32(model: Model) -> Model:
    """The same model without coarse rounding."""
    batches = tuple({n: t.float() if t.is_floating_point() else t for n, t in b.items()} for b in model.batches)
    return replace(model, module=copy.deepcopy(model.module).float(), batches=batches)


def difference(comparisons: tuple[Comparison, ...]) -> RunDiffers | None:
    """The first tensor that differs."""
    wrong = [c for c in comparisons if c.differs]
    if not wrong:
        return None
    first = wrong[0]
    summary = f"{len(wrong)} of {len(comparisons)} tensors differ"
    where = f"largest error {first.error:.3g} at {list(first.index)}"
    return RunDiffers(None, first.kind, first.name, where, first.got, first.expected, first.allowed, summary)


def _without_idle(single: Trained, plan: Trained, model: Model) -> Trained:
    """Leave out what no operator reads, so that no rank holds it, if the single device did not change it either."""
    start = {**dict(model.module.named_parameters()), **dict(model.module.named_buffers())}
    held = {**plan.weights, **plan.buffers}

    def kept(tensors: Tensors) -> Tensors:
        return {n: t for n, t in tensors.items() if n in held or not torch.equal(t, start[n])}

    return replace(single, weights=kept(single.weights), buffers=kept(single.buffers))


def _trained(model: Model, steps: int, losses: tuple[float, ...], dumps: Mapping[int, Any]) -> Trained:
    """What the ranks hold, put together; tensors by the names that the module itself lists them under."""
    names = _canonical(model.module)
    grads = tuple(
        _whole(names, f"step {step}'s gradient", {rank: dump["grads"][step] for rank, dump in dumps.items()})
        for step in range(steps)
    )
    weights = _whole(names, "weight", {rank: dump["weights"] for rank, dump in dumps.items()})
    buffers = _whole(names, "buffer", {rank: dump["buffers"] for rank, dump in dumps.items()})
    frozen = [
        n for n, _ in model.module.named_parameters() if n in buffers
    ]  # a program keeps what it does not train there
    weights |= {n: buffers.pop(n) for n in frozen}
    return Trained(losses, grads, weights, buffers)


def _whole(names: Mapping[str, str], what: str, ranks: Mapping[int, Mapping[str, Any]]) -> Tensors:
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
