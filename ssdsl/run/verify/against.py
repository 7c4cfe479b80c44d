"""Compares a run with the tensors of another program: of torch's DDP or FSDP, of Megatron, or a script of one device.

Both begin alike where the file has the weights and batches from which the other program began (`begun_as`). The plan's
tensors are then compared with the file's as with the single device's, and rounding may differ by as much
(`compare.py`). The effect of rounding is measured on a single device that takes its own steps, because the other
program took its own.
"""

import copy
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import torch

from ssdsl.ir.program import Kernels
from ssdsl.model.load.model import Model
from ssdsl.record import Record, replace
from ssdsl.run.verify.compare import Comparison, compare
from ssdsl.run.verify.error_growth import SingleDevice
from ssdsl.run.verify.errors import NothingToCompare, ProgramsDiffer
from ssdsl.run.verify.other_program import OtherProgram
from ssdsl.run.verify.single_device import Name, Tensors, Trained, gradient_of, loss_of
from ssdsl.run.verify.verify import reason, trained_by, words
from ssdsl.runtime.options import Training
from ssdsl.text.diagnostic import PlanError


class Against(Record):
    """A run beside another program: the comparisons, the plan's tensors that the file lacks, and sentences about the
    file. `draws`: the model draws random numbers."""

    other: OtherProgram
    comparisons: tuple[Comparison, ...]
    lacking: tuple[Name, ...]
    said: tuple[str, ...]
    ratios: dict[Name, float]
    draws: bool


def check_comparable(other: OtherProgram, steps: int) -> None:
    """Raises PlanError if nothing of the file can be compared after so many steps."""
    has_steps = [step for step in (*other.losses, *other.grads) if step < steps]
    if not has_steps and not (other.state and other.steps <= steps):
        kinds = {
            "weights at the start": other.start,
            "batches": other.batches,
            "losses or gradients of later steps": {**other.losses, **other.grads},
            "weights after later steps": other.state,
        }
        has = ", ".join(name for name, found in kinds.items() if found)
        lost = other.unknown.listed if other.unknown is not None else ""
        raise PlanError(NothingToCompare(None, other.file, f"it has {has or 'no tensor that the model knows'}\n{lost}"))


def begun_as(model: Model, other: OtherProgram, steps: int) -> Model:
    """The model with the weights and the batches from which the other program began."""
    if other.start:
        model = model.with_numbers()
        module = copy.deepcopy(model.module)
        with torch.no_grad():
            for name, tensor in chain(module.named_parameters(), module.named_buffers()):
                if name in other.start:
                    tensor.copy_(other.start[name])
        model = replace(model, module=module)
    if not other.batches:
        return model
    own = model.batches
    batches = (own[step % len(own)] | _like(own[0], other.batches.get(step, {})) for step in range(steps))
    return replace(model, batches=tuple(batches))


def _like(own: Mapping[str, torch.Tensor], batch: Tensors) -> Tensors:
    """The inputs in the types of the model's."""
    return {name: tensor.to(own[name].dtype) for name, tensor in batch.items()}


def compare_other(
    model: Model,
    training: Training,
    losses: tuple[float, ...],
    dumps: Mapping[int, Any],
    other: OtherProgram,
    kernels: Kernels = Kernels.EAGER,
) -> Against:
    """Compares the ranks' dumps of a run with another program, tensor by tensor. `model` is what the run trained."""
    model = model.with_numbers()
    plan, _ = trained_by(model, training.steps, losses, dumps)
    device = SingleDevice(model, training, None, kernels)
    plan, theirs = _side_by_side(model, plan, other, training.steps)
    known = {*_named(other, training.steps, model)}
    computed = [name for name in theirs.tensors() if name[0] == "gradient"]  # a zero is judged by its size

    def compared(growth: dict[Name, float]) -> tuple[Comparison, ...]:
        found = compare(plan, replace(theirs, loss_type=device.trained.loss_type), growth, device.precision, computed)
        return tuple(c for c in found if (c.kind, c.name) in known)

    found = compared(device.growth)
    if any(c.differs for c in found):  # more runs before two programs are called different
        found = compared(device.growth_of_many)
    ours, values = plan.tensors(), theirs.tensors()
    ratios = {(c.kind, c.name): r for c in found if c.differs and (r := _ratio(c, ours, values)) is not None}
    lacking = tuple(name for name in ours if name not in known)
    return Against(other, found, lacking, tuple(_said(other, model, training.steps)), ratios, any(device.trained.drawn))


def _side_by_side(model: Model, plan: Trained, other: OtherProgram, steps: int) -> tuple[Trained, Trained]:
    """The plan's tensors and the other program's, of the same names: what the file lacks is as the plan's, and what no
    rank has is as it began, or a gradient of zero."""
    start = {**dict(model.module.named_parameters()), **dict(model.module.named_buffers())}
    weights = {name for name, _ in model.module.named_parameters()}
    state = other.state if other.steps <= steps else {}
    kept = {name: start[name].detach().cpu() for name in state if name not in {**plan.weights, **plan.buffers}}
    grads = tuple(
        {name: torch.zeros_like(g) for name, g in other.grads.get(step, {}).items()} | own
        for step, own in enumerate(plan.grads)
    )
    ours = replace(
        plan,
        grads=grads,
        weights=plan.weights | {n: t for n, t in kept.items() if n in weights},
        buffers=plan.buffers | {n: t for n, t in kept.items() if n not in weights},
    )
    theirs = replace(
        ours,
        losses=tuple(other.losses.get(step, loss) for step, loss in enumerate(ours.losses)),
        grads=tuple(own | other.grads.get(step, {}) for step, own in enumerate(grads)),
        weights=ours.weights | {n: t for n, t in state.items() if n in weights},
        buffers=ours.buffers | {n: t for n, t in state.items() if n not in weights},
    )
    return ours, theirs


def _named(other: OtherProgram, steps: int, model: Model) -> Iterator[Name]:
    """The names of the tensors that the file has of these steps."""
    weights = {name for name, _ in model.module.named_parameters()}
    yield from (loss_of(step) for step in other.losses if step < steps)
    yield from (gradient_of(step, name) for step, grads in other.grads.items() if step < steps for name in grads)
    if other.steps <= steps:
        yield from (("weight" if name in weights else "buffer", name) for name in other.state)


def _said(other: OtherProgram, model: Model, steps: int) -> Iterator[str]:
    """Sentences about the file: how names were read, where both began, what of it was not compared."""
    yield from other.said
    weights = dict(model.module.named_parameters())
    lacking = [name for name in weights if name not in other.start]
    if not other.start:
        yield "it has no weights of the start: the other program has to begin with the model's own"
    elif lacking:
        yield f"its start lacks {len(lacking)} of {len(weights)} weights, as `{lacking[0]}`: these are the model's own"
    if not other.batches:
        yield "it has no batches: the other program has to read the model's own"
    elif missing := [step for step in range(steps) if step not in other.batches]:
        yield f"it has no batch of step {missing[0]}: the model's own is taken there"
    if other.steps > steps:
        after = ", nor its weights after the last" if other.state else ""
        yield f"its steps from {steps} on are not compared{after}: --steps {other.steps} compares them"


def _ratio(
    comparison: Comparison, ours: Mapping[Name, torch.Tensor], theirs: Mapping[Name, torch.Tensor]
) -> float | None:
    """By how much all elements of the other program's tensor are larger than the plan's, if it is one factor."""
    name = comparison.kind, comparison.name
    a, b = ours[name].detach().double().flatten(), theirs[name].detach().double().flatten()
    if comparison.kind not in ("gradient", "loss") or not a.isfinite().all() or not b.isfinite().all() or not a.any():
        return None
    factor = float((a @ b) / (a @ a))
    allowed = max(comparison.allowed, 1e-4 * float(b.abs().max()))
    fits = float((b - factor * a).abs().max()) <= allowed
    return factor if factor and fits else None


def other_difference(found: Against, agrees: bool) -> ProgramsDiffer | None:
    """The diagnostic of the first tensor that differs, None if all are equal. `agrees`: the plan is equal to a single
    device."""
    wrong = [c for c in found.comparisons if c.differs]
    if not wrong:
        return None
    first = wrong[0]
    factor = found.ratios.get((first.kind, first.name))
    ratio = "" if factor is None else f"it is {factor:.4g} times the plan's, in every element"
    begun = ", which began with the same weights" if found.other.start else ""
    single = f"the plan equals a single device{begun}" if agrees else ""
    where = f"largest error {first.error:.3g} at {list(first.index)}"
    summary = f"{len(wrong)} of {len(found.comparisons)} tensors differ"
    what, name = words(first.kind, first.name)
    values = first.got, first.expected, reason(first), ratio, summary, single, _change(found, first, factor)
    return ProgramsDiffer(None, found.other.file, what, name, where, *values)


def _change(found: Against, first: Comparison, factor: float | None) -> str:
    """What to change in the other program, or in what it saves."""
    if found.draws:
        return "train both without dropout (`model.eval()` or p = 0): two programs draw other random numbers"
    if factor is not None and first.kind == "gradient":
        return "average gradients over ranks and micro-batches, and save them before they are scaled or clipped"
    missing = [
        what
        for what, has in (("`start/NAME`", found.other.start), ("`batch/STEP/INPUT`", found.other.batches))
        if not has
    ]
    if missing:
        return f"save {' and '.join(missing)} too, so that both begin alike"
    if first.kind in ("weight", "buffer"):
        return "give the optimizer and the learning rate of the other program: --optimizer, --lr"
    return "look for what the other program computes otherwise: `ssdsl explain E0549` lists the usual reasons"
