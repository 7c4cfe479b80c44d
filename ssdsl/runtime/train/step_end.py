"""The end of a step, once its gradients are complete: what all ranks must agree on, and the optimizer's step.

One all_reduce sums the loss and the squares of the gradients, which also shows any overflow. So all ranks clip by one
norm, skip the step together or not at all, and return the same loss.
"""

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from enum import Enum

import torch

from ..errors import EngineError
from ..find_nan.not_finite import kind_of
from ..health.stop_request import StopRequest
from ..link.host import HostLink
from ..ranks.control import Control
from ..step.rank_program import RankProgram
from .homes import Homes
from .optimizer import OptimizedParam, Optimizer, Optimizers
from .precision import Scaler

EPSILON = 1e-6  # added to the norm, as in torch.nn.utils.clip_grad_norm_


@dataclass(frozen=True)
class StepOptions:
    """Options of a step: arguments of `Engine.step`. The `optimizers` update their weights; other gradients of the step
    are dropped."""

    clip: float | None = None
    update: bool = True
    scale: float = 1.0
    allow_nan: bool = False
    find_nan: bool = False
    optimizers: tuple[Optimizer, ...] = ()

    def __post_init__(self) -> None:
        """Raises EngineError for invalid numbers."""
        if self.clip is not None and not (isinstance(self.clip, int | float) and self.clip > 0):
            raise EngineError(f"clip={self.clip!r} is no norm of gradients", "give a positive number, or None")
        if not (isinstance(self.scale, int | float) and math.isfinite(self.scale)):
            raise EngineError(f"scale={self.scale!r} scales no loss", "give a number, as 1/4 for the mean of 4 batches")
        if self.allow_nan and self.find_nan:
            reason = "`find_nan` ends at the first number that is not finite, and `allow_nan` goes on"
            raise EngineError(reason, "give one of them")


class NotFinite(Enum):
    """What of a step is not finite, and must be."""

    LOSS = "the loss"
    GRADIENT = "a gradient"
    WEIGHT = "a weight after the update"


class StepEnd:
    """The end of a step on one rank; `weights` are the tensors whose gradients it has. Those whose home (`homes`) is on
    some rank are updated there, the others here: `optimized` are what optimizers update on this rank. The engine sets
    `options` before a step.

    After a step, `updated` says whether the optimizer has stepped, `not_finite` why the step has failed, if it has, and
    `norm` is the norm of the gradients before they were clipped; None before the first step that clips.
    """

    def __init__(
        self, weights: list[OptimizedParam], control: Control, scaler: Scaler | None, homes: Homes | None = None
    ) -> None:
        self.weights, self.control, self.scaler, self.homes = weights, control, scaler, homes
        away = homes.names if homes is not None else frozenset[str]()
        self.optimized = [w for w in weights if w.name not in away] + (homes.params if homes is not None else [])
        self._flats = list(dict.fromkeys(weight.flat for weight in weights))
        self._copies = [weight for weight in weights if weight.is_copy]
        self.options = StepOptions()
        self.updated = False
        self.not_finite: NotFinite | None = None
        self.norm: float | None = None
        self.request, self.is_stopping = StopRequest(), False  # of this rank; whether one of any rank was known by now
        self.watch: Callable[[], None] = lambda: None  # called when the gradients are complete
        self.optimizers = Optimizers()
        self.accumulated: dict[str, torch.Tensor] = {}  # the sums of the gradients of steps without update
        self.waiting = set[str]()  # the weights with homes of which some rank has accumulated gradients
        self.loss = 0.0

    @property
    def loss_scale(self) -> float:
        """The factor of the loss before backward."""
        return self.options.scale * (self.scaler.scale if self.scaler is not None else 1.0)

    def __call__(self, share: RankProgram) -> None:
        """Ends the step of this rank's part of a program. All ranks call it, after each step's backward.

        A step whose loss is not finite and must be, or whose scaled gradients overflow, updates nothing, and drops the
        accumulated gradients too. After an overflow nothing is accumulated up to the next update, which is left out: it
        would be one of a part of its batches.
        """
        share.runner.doing = "update"
        self.watch()
        gradients = self._gradients(share)
        needs_norm = self.options.clip is not None or self.scaler is not None
        sums = _square_sums([g for w, g in gradients if w.held.owns]) if needs_norm else []
        losses = share.losses()
        numbers = _read([*losses, *sums])
        loss, squares = sum(numbers[: len(losses)]), sum(numbers[len(losses) :])
        bad = self.options.find_nan and self.scaler is None and _are_bad(g for _, g in gradients)
        asked = float(self.request.is_asked)
        self.loss, squares, bad_ranks, asked = self.control.sum([loss, squares, float(bad), asked])
        self.is_stopping |= asked > 0
        self.updated = False
        self.not_finite = None
        if not (math.isfinite(self.loss) or self.options.allow_nan):
            self.not_finite = NotFinite.LOSS
        elif bad_ranks:
            self.not_finite = NotFinite.GRADIENT
        overflowed = self.scaler is not None and not math.isfinite(squares)
        if self.scaler is not None:
            self.scaler.skips |= overflowed
        is_left_out = self.scaler is not None and self.scaler.skips
        if is_left_out or self.not_finite is not None:
            self._forget(gradients)
        elif not self.options.update:
            self.accumulated |= {w.name: g for w, g in gradients}
            self.waiting |= self._with_homes() - {*share.table.unreached}
        else:
            with share.runner.timed("optimizer", "update", 0):
                mine = self._with_homes()
                self._step(gradients, squares, (mine - {*share.table.unreached}) | (mine & self.waiting))
                self._check_update()
        if self.scaler is not None:
            if overflowed or self.updated:
                self.scaler.update(overflowed)
            self.scaler.skipped += is_left_out and self.options.update
            self.scaler.skips &= not self.options.update
        for flat in self._flats:
            flat.drop_gradients()

    def _gradients(self, share: RankProgram) -> list[tuple[OptimizedParam, torch.Tensor]]:
        """Gradients of the loss, plus the accumulated ones, in the type of the optimizer's tensors: those of weights of
        the step's optimizers, or all where there is no optimizer yet."""
        unreached, chosen = frozenset(share.table.unreached), self._chosen()
        given = (pair for flat in self._flats for pair in flat.gradients().items())
        found = {name: g for name, g in given if g is not None and name in chosen and name not in unreached}
        for weight in self._copies:
            if weight.name in found:
                with HostLink(found[weight.name].nbytes if weight.on_host else 0):
                    found[weight.name] = found[weight.name].to(weight.parameter.device, weight.parameter.dtype)
        if (homes := self.homes) is not None:
            for name in found.keys() & homes.names:
                found[name] = found[name].to(homes.gradient_dtype(homes.local[name]))
        if self.scaler is not None:
            unscale = 1.0 / self.scaler.scale
            found = {name: gradient * unscale for name, gradient in found.items()}
        for name, earlier in ((name, g) for name, g in self.accumulated.items() if name in chosen):
            found[name] = earlier + found[name] if name in found else earlier
        return [(weight, found[weight.name]) for weight in self.weights if weight.name in found]

    def _chosen(self) -> Collection[str]:
        """The weights of the step's optimizers; all, if no optimizer is asked for."""
        if not self.options.optimizers:
            return {weight.name for weight in self.weights}
        return {name for optimizer in self.options.optimizers for name in optimizer.chosen}

    def _with_homes(self) -> set[str]:
        """The weights of the step's optimizers with homes, of which this rank is one of the ranks."""
        names = self.homes.names if self.homes is not None else frozenset[str]()
        return {*names} & {*self._chosen()} if self.options.optimizers else {*names}

    def _forget(self, gradients: list[tuple[OptimizedParam, torch.Tensor]]) -> None:
        """Drops what has been accumulated of these weights."""
        for weight, _ in gradients:
            self.accumulated.pop(weight.name, None)
        self.waiting -= self._with_homes()

    @torch.no_grad()
    def _step(
        self, gradients: list[tuple[OptimizedParam, torch.Tensor]], squares: float, names: Collection[str]
    ) -> None:
        """Clips and steps; `squares` is the sum of the squares of all gradients of all ranks, `names` are the weights
        with homes that are updated."""
        if self.options.clip is not None:
            self.norm = math.sqrt(squares)
            if gradients and (factor := self.options.clip / (self.norm + EPSILON)) < 1.0:
                torch._foreach_mul_([g for _, g in gradients], factor)
        away = self.homes.names if self.homes is not None else frozenset[str]()
        for weight, gradient in ((w, g) for w, g in gradients if w.name not in away):
            weight.parameter.grad = gradient
        if self.homes is not None:
            self.homes.take({w.name: g for w, g in gradients if w.name in away}, names)
        for optimizer in self.options.optimizers:
            optimizer.torch.step()
        for weight, _ in gradients:
            weight.parameter.grad = None
        for weight in self._copies:
            weight.give_back()
        if self.homes is not None:
            self.homes.spread(names)
        self._forget(gradients)
        self.updated = True

    def _check_update(self) -> None:
        """With `find_nan`, notes on all ranks whether the update left a weight that is not finite on one."""
        if self.options.find_nan:
            updated = (x for w in self.optimized for x in (w.parameter.detach(), w.held.tensor))
            (ranks,) = self.control.sum([float(_are_bad(updated))])
            self.not_finite = NotFinite.WEIGHT if ranks else None


def _are_bad(tensors: Iterable[torch.Tensor]) -> bool:
    return any(kind_of(x) is not None for x in tensors)


def _read(numbers: list[torch.Tensor]) -> list[float]:
    """Tensors of one number each, as numbers in float64. All are read together: a GPU is awaited once."""
    where = numbers[0].device if numbers else None
    return torch.stack([x.double().view(()).to(where) for x in numbers]).tolist() if numbers else []


def _square_sums(gradients: list[torch.Tensor]) -> list[torch.Tensor]:
    """The sum of the squares of all elements, in an addend for each dtype."""
    gradients = [torch.view_as_real(g.resolve_conj()) if g.is_complex() else g for g in gradients]
    sums = []
    groups: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
    for gradient in gradients:  # the norm's dtype is at least as wide as the gradients'
        groups.setdefault((gradient.device, torch.promote_types(gradient.dtype, torch.float32)), []).append(gradient)
    for (_, dtype), alike in groups.items():
        sums.append(torch.stack(torch._foreach_norm(alike, dtype=dtype)).double().square().sum())
    return sums
