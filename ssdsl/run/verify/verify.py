"""Checks that a finished run computed what a single device computes: every loss, gradient, weight and buffer."""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, assert_never

import torch

from ssdsl.ir.program import Kernels
from ssdsl.model.checks.check_capture import first_not_finite
from ssdsl.model.graph import Graph
from ssdsl.model.load.model import Model
from ssdsl.model.load.unmaterialised import first_names, named_tensors
from ssdsl.record import replace
from ssdsl.run.errors import NothingCompared, PiecesDisagree, PiecesIncomplete, ResultMissing, RunDiffers
from ssdsl.run.in_process.run_in_process import Finished, RanksFailed, run_in_process, run_with_noise
from ssdsl.run.results import RunResult
from ssdsl.run.verify.assemble import CopySpread, WholeTensors, assemble
from ssdsl.run.verify.compare import Comparison, Limit, compare, unit_of
from ssdsl.run.verify.error_growth import EXACT, Growth, SingleDevice, largest_of
from ssdsl.run.verify.single_device import Name, Tensors, Trained, gradient_of
from ssdsl.runtime.options import Training
from ssdsl.runtime.program.program import CompiledProgram
from ssdsl.text.diagnostic import PlanError

Spreads = Mapping[Name, CopySpread]
Rerun = Callable[[], Finished]


def verify(
    model: Model,
    training: Training,
    result: RunResult,
    folder: Path | None = None,
    kernels: Kernels = Kernels.EAGER,
) -> tuple[Comparison, ...]:
    """Compares a run that was launched with `dump` with the single device, which is eager; `folder` has its program,
    whose `kernels` may round otherwise.

    Raises PlanError if the ranks' pieces are incomplete or copies disagree. Differences are in the result.
    """
    dumps = dumps_of(result)
    if folder is None:
        return verify_dumps(model, training, result.losses, dumps, kernels=kernels)
    read = partial(CompiledProgram.read, folder)
    reruns = lambda: run_in_process(read(), training, EXACT), lambda: run_with_noise(read(), training)
    return verify_dumps(model, training, result.losses, dumps, *reruns, kernels=kernels)


def verify_dumps(
    model: Model,
    training: Training,
    losses: tuple[float, ...],
    dumps: Mapping[int, Any],
    rerun: Rerun | None = None,
    noisy: Rerun | None = None,
    kernels: Kernels = Kernels.EAGER,
) -> tuple[Comparison, ...]:
    """Compares the ranks' dumps with the single device; raises as `verify` does.

    `rerun` runs the plan once more with everything computed in float64. It is called where rounding may hide a mistake.
    `noisy` runs it with wrong last digits. It is called where a gradient is zero that rounding should make another.
    """
    model = model.with_numbers()
    plan, spreads = trained_by(model, training.steps, losses, dumps)
    device = SingleDevice(model, training, _follow(training, plan), kernels)
    return compare_with(device, plan, spreads, rerun, noisy)


def compare_with(
    device: SingleDevice, plan: Trained, spreads: Spreads, rerun: Rerun | None = None, noisy: Rerun | None = None
) -> tuple[Comparison, ...]:
    """Compares a plan's training with a single device, which keeps its measurements for the next plan."""
    single = _without_unread(device.trained, plan, device.model)
    _check_names(plan, single)
    found = compare(plan, single, device.growth, device.precision)
    if any(c.differs for c in found) or _disagreement(found, spreads):  # more runs before a plan is called wrong
        found = compare(plan, single, device.growth_of_many, device.precision)
    if computed := _computed(found, device, noisy):
        found = compare(plan, single, device.growth_of_many, device.precision, computed)
    _check_copies(found, spreads)
    if rerun is None or difference(found) or not _may_hide(found, device):
        return found
    return *found, *_in_float64(device, rerun, noisy)


def _computed(found: tuple[Comparison, ...], device: SingleDevice, noisy: Rerun | None) -> frozenset[Name]:
    """Gradients that the plan computes, if any seems to be missing: a sum of equal numbers of opposite signs is zero in
    the plan's order, and not in the single device's. It is not where the last digits of these numbers are wrong."""
    if noisy is None or not any(c.missing for c in found):
        return frozenset()
    try:
        finished = noisy()
    except RanksFailed:
        return frozenset()
    plan, _ = trained_by(device.model, device.training.steps, finished.losses, finished.dumps)
    steps = enumerate(plan.grads)
    return frozenset(gradient_of(step, name) for step, grads in steps for name, grad in grads.items() if grad.any())


def _follow(training: Training, plan: Trained) -> tuple[Tensors, ...] | None:
    """The plan's gradients if the single device steps with them, None if it steps with its own. AdamW's first step is
    near to the sign of a gradient, so rounding alone would change a weight whose gradient is almost zero."""
    return plan.grads if training.optimizer == "adamw" else None


def _may_hide(found: tuple[Comparison, ...], device: SingleDevice) -> bool:
    """Whether rounding allows a difference of some tensor in which a mistake of a thousandth would not show
    (`Comparison.is_sharp`), and it would show in float64."""
    if device.exact is None:
        return False
    exact = compare(device.exact, device.exact, _in_exact_units(device))
    sharp = {(c.kind, c.name) for c in exact if c.is_sharp}
    return any((c.kind, c.name) in sharp for c in found if not c.is_sharp)


def _in_float64(device: SingleDevice, rerun: Rerun, noisy: Rerun | None) -> tuple[Comparison, ...]:
    """The comparison of the same training in float64; empty if that is not possible."""
    training = device.training
    try:
        finished = rerun()
    except RanksFailed:  # the plan runs in its own precision, so a kernel lacks float64
        return ()
    plan, spreads = trained_by(device.model, training.steps, finished.losses, finished.dumps)
    follow = plan.grads if device.follow is not None else None
    single = device.exact_along(follow) if follow is not None else device.exact
    if single is None:
        return ()
    growth, expected = _in_exact_units(device), _only_of(plan, single)
    found = compare(plan, expected, growth)
    if any(c.differs for c in found):  # float64 parts of the device's own run do not shrink with the unit
        growth = largest_of([growth, device.exact_growth(single, follow)])
        found = compare(plan, expected, growth, computed=_computed(found, device, noisy))
    _check_copies(found, spreads)
    return tuple(replace(c, in_float64=True) for c in found)


def _in_exact_units(device: SingleDevice) -> Growth:
    """The growth of rounding in float64, as far as it is in proportion to the unit in the last place: the growth in the
    device's own precision, times the ratio of the units."""
    factor = unit_of(EXACT) / torch.finfo(device.precision).eps
    return {name: factor * growth for name, growth in device.growth.items()}


def _only_of(plan: Trained, single: Trained) -> Trained:
    """The single device's training without the weights and buffers that no rank has."""

    def only(tensors: Tensors, ours: Tensors) -> Tensors:
        return {name: tensor for name, tensor in tensors.items() if name in ours}

    return replace(single, weights=only(single.weights, plan.weights), buffers=only(single.buffers, plan.buffers))


def _check_copies(comparisons: tuple[Comparison, ...], spreads: Spreads) -> None:
    if disagreement := _disagreement(comparisons, spreads):
        raise PlanError(disagreement)


def _disagreement(comparisons: tuple[Comparison, ...], spreads: Spreads) -> PiecesDisagree | None:
    """The diagnostic if two copies differ by more than a correct plan may differ from the single device, else None."""
    allowed = {(c.kind, c.name): c.allowed for c in comparisons}
    for (kind, name), spread in spreads.items():
        if not spread.error <= allowed.get((kind, name), 0.0):
            what, tensor = words(kind, name)
            values = str(list(spread.index)), spread.first_value, spread.second_value
            return PiecesDisagree(None, what, tensor, spread.first, spread.second, *values)
    return None


def difference(comparisons: tuple[Comparison, ...], graph: Graph | None = None) -> RunDiffers | None:
    """The diagnostic of the first tensor that differs; None if all are equal. The graph shows whether the model makes
    choices."""
    wrong = [c for c in comparisons if c.differs]
    if not wrong:
        return None
    first = wrong[0]
    summary = f"{len(wrong)} of {sum(c.in_float64 == first.in_float64 for c in comparisons)} tensors differ"
    where = f"largest error {first.error:.3g} at {list(first.index)}"
    chooses = graph is not None and any(operator.kind == "topk" for operator in graph.operators)
    return RunDiffers(None, first.what, first.name, where, first.got, first.expected, reason(first), summary, chooses)


def reason(comparison: Comparison) -> str:
    """The allowed difference of a tensor, and its reason, as a text."""
    allowed = f"allowed: {comparison.allowed:.3g}, with {comparison.largest:.3g} as the largest element"
    match comparison.limit:
        case Limit.ZERO:
            return "it is zero in every element, so it is missing"
        case Limit.UNKNOWN:
            return "allowed: anything, as rounding alone makes it infinite or NaN"
        case Limit.GROWTH:
            return f"{allowed}: {comparison.factor:g} times the measured effect of rounding"
        case Limit.ROUNDING:
            return f"{allowed}: the rounding of a sum"
        case _:
            assert_never(comparison.limit)


def compared_steps(comparisons: tuple[Comparison, ...]) -> tuple[int, int]:
    """The number of steps whose loss is finite on the single device, and the number of all steps."""
    losses = [c.expected for c in comparisons if c.kind == "loss" and not c.in_float64]
    return sum(map(math.isfinite, losses)), len(losses)


def nothing_compared(comparisons: tuple[Comparison, ...], model: Model, graph: Graph) -> NothingCompared | None:
    """The diagnostic if no step has a finite loss, with the place where the model's numbers stop being finite."""
    if compared_steps(comparisons)[0]:
        return None
    first = next(c for c in comparisons if c.kind == "loss")
    places = first_not_finite(model.with_numbers(), graph)
    return NothingCompared(None, str(first.expected), "\n".join(places))


def _without_unread(single: Trained, plan: Trained, model: Model) -> Trained:
    """Leaves out tensors that no operator reads, and so no rank has, if the single device did not change them."""
    start = {**dict(model.module.named_parameters()), **dict(model.module.named_buffers())}
    of_ranks = {**plan.weights, **plan.buffers}

    def kept(tensors: Tensors) -> Tensors:
        return {n: t for n, t in tensors.items() if n in of_ranks or not torch.equal(t, start[n])}

    return replace(single, weights=kept(single.weights), buffers=kept(single.buffers))


def trained_by(
    model: Model, steps: int, losses: tuple[float, ...], dumps: Mapping[int, Any]
) -> tuple[Trained, dict[Name, CopySpread]]:
    """The ranks' tensors, assembled, and how far their copies differ; by the module's own names."""
    names = first_names(named_tensors(model.module))
    grads = [
        _whole(names, f"step {step}'s gradient", {rank: dump["grads"][step] for rank, dump in dumps.items()})
        for step in range(steps)
    ]
    weights = _whole(names, "weight", {rank: dump["weights"] for rank, dump in dumps.items()})
    buffers = _whole(names, "buffer", {rank: dump["buffers"] for rank, dump in dumps.items()})
    for name, _ in model.module.named_parameters():  # a program keeps untrained weights among the buffers
        if name in buffers.tensors:
            weights.tensors[name] = buffers.tensors.pop(name)
        if name in buffers.spreads:
            weights.spreads[name] = buffers.spreads.pop(name)
    spreads = {gradient_of(step, n): spread for step, whole in enumerate(grads) for n, spread in whole.spreads.items()}
    for kind, found in (("weight", weights), ("buffer", buffers)):
        spreads |= {(kind, name): spread for name, spread in found.spreads.items()}
    return Trained(losses, tuple(g.tensors for g in grads), weights.tensors, buffers.tensors), spreads


def _whole(names: Mapping[str, str], what: str, ranks: Mapping[int, Mapping[str, Any]]) -> WholeTensors:
    """Full tensors; pieces under any name of a tied weight are pieces of one tensor."""
    return assemble(what, {rank: {names.get(n, n): piece for n, piece in held.items()} for rank, held in ranks.items()})


def dumps_of(result: RunResult) -> dict[int, Any]:
    """What each rank of a run that was launched with `dump` has written. Raises PlanError."""
    return {r.rank: _load(result.out, r.rank) for r in result.ranks}


def _load(out: Path, rank: int) -> Any:
    path = out / f"rank{rank}.pt"
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise PlanError(ResultMissing(None, rank, path.name, str(error))) from error


def _check_names(plan: Trained, single: Trained) -> None:
    """Raises unless some rank has every tensor of the single device, in full shape."""
    found = [*_missing(plan.tensors(), single.tensors())]
    if len(found) > 5:
        found[5:] = [replace(found[5], reason=f"and {len(found) - 5} more")]
    if found:
        raise PlanError(*found)


def _missing(plan: Mapping[Name, torch.Tensor], single: Mapping[Name, torch.Tensor]) -> Iterator[PiecesIncomplete]:
    for (kind, name), tensor in single.items():
        if kind == "loss":
            continue
        if (found := plan.get((kind, name))) is None:
            yield PiecesIncomplete(None, *words(kind, name), "no rank holds a piece of it")
        elif found.shape != tensor.shape:
            shapes = f"the ranks hold {list(found.shape)} and the module {list(tensor.shape)}"
            yield PiecesIncomplete(None, *words(kind, name), shapes)


def words(kind: str, name: str) -> tuple[str, str]:
    """The kind of a tensor, and its name in the model: `step 0's gradient` and `fc.weight`."""
    step, _, tensor = name.rpartition(" ")
    return f"{step}'s {kind}" if step else kind, tensor
