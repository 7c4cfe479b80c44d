"""Any of torch's optimizers on what a rank holds: a weight, its part, or under ZeRO some elements of its part.

An optimizer that treats each element by itself (Adam, SGD) gives the same numbers on parts as on the whole weight. One
that looks at a weight as a whole (Adafactor, Muon) does not; which it is, is found out by trying.
"""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch

from ..errors import EngineError
from ..flat import FlatParam
from ..held import Held

Groups = Mapping[str, Mapping[str, Any]]
Make = type[torch.optim.Optimizer]


@dataclass(eq=False)
class Stepped:
    """What the optimizer steps on, of one weight: `parameter` is what is trained itself, or its master copy."""

    held: Held
    flat: FlatParam
    parameter: torch.nn.Parameter

    @property
    def name(self) -> str:
        """The weight's."""
        return self.held.name

    @property
    def is_master(self) -> bool:
        """Whether the optimizer steps on a copy of higher precision."""
        return self.parameter.dtype != self.held.tensor.dtype

    def take(self, gradient: torch.Tensor | None) -> None:
        """The gradient of the coming step."""
        if gradient is not None and gradient.dtype != self.parameter.dtype:
            gradient = gradient.to(self.parameter.dtype)
        self.parameter.grad = gradient

    @torch.no_grad()
    def give_back(self) -> None:
        """What is trained takes the value of its master copy."""
        if self.is_master:
            self.held.tensor.copy_(self.parameter)


def stepped(flats: Iterable[FlatParam], held: Sequence[Held], masters: Mapping[str, torch.Tensor]) -> list[Stepped]:
    """What an optimizer steps on, in the order of the model's weights; `masters` are the copies to step on."""
    flat_of = {name: flat for flat in flats for name in flat.stepped()}
    found = []
    for one in held:
        if one.name in flat_of:
            copy = masters.get(one.name)
            parameter = torch.nn.Parameter(one.tensor if copy is None else copy)
            found.append(Stepped(one, flat_of[one.name], parameter))
    return found


def make_optimizer(
    make: Make, weights: Sequence[Stepped], names: Sequence[str], groups: Groups, options: Mapping[str, Any]
) -> torch.optim.Optimizer:
    """The optimizer of this rank, of as many parameter groups on each: one per entry of `groups`, then all the rest.

    A key of `groups` has patterns of names (`"*.bias|*norm*"`); a weight belongs to the first that fits. `names` are
    those of all trained weights, here or elsewhere. Raises EngineError: a pattern fits none; the optimizer cannot
    step on parts of weights, or does not take the options.
    """
    chosen = {name: _group_of(name, groups) for name in names}
    for key in groups:
        if key not in chosen.values():
            known = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
            raise EngineError(f"`{key}`: no trained weight has such a name", f"the model's are {known}")
    table: list[dict[str, Any]] = []
    for key in (*groups, None):
        of_group = [w for w in weights if chosen[w.name] == key]
        own = dict(groups[key]) if key is not None else {}
        table.append({"params": [(w.name, w.parameter) for w in of_group], **own})
    _check(make, weights, options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a rank may have no weight of a group
        return make(table, **options)


def _group_of(name: str, groups: Groups) -> str | None:
    return next((key for key in groups if any(fnmatchcase(name, p.strip()) for p in key.split("|"))), None)


# -- whether parts may be stepped on -----------------------------------------------------------------------------------


def _check(make: Make, weights: Sequence[Stepped], options: Mapping[str, Any]) -> None:
    """Raises EngineError for an optimizer that would not do what it does on one device."""
    cut = next((w.name for w in weights if w.held.span is not None or w.held.piece.takes), None)
    called = f"{make.__name__}({', '.join(f'{name}={value!r}' for name, value in options.items())})"
    try:
        apart = not _steps_on_elements(make, options)
    except Exception as error:  # whatever a user's optimizer raises
        raise EngineError(f"`{called}` cannot take a step: {error}", "see what this optimizer needs") from error
    if apart and cut is not None:
        raise EngineError(
            f"`{make.__name__}` looks at a weight as a whole, and this plan has `{cut}` in parts",
            "take an optimizer that treats each element by itself (AdamW, SGD), or a plan that cuts no weight",
        )


def _steps_on_elements(make: Make, options: Mapping[str, Any]) -> bool:
    """Whether some steps on a weight are those on its two halves, each flattened."""
    draw = torch.Generator().manual_seed(0)
    whole = torch.randn(6, 8, generator=draw)
    gradients = torch.randn(3, 6, 8, generator=draw)
    together = _after(make, options, [whole], [[g] for g in gradients])[0]
    halves = _after(make, options, _halves(whole), [_halves(g) for g in gradients])
    return torch.allclose(together.flatten(), torch.cat(halves), rtol=1e-5, atol=1e-7)


def _halves(x: torch.Tensor) -> list[torch.Tensor]:
    flat = x.flatten()
    return [flat[:17].clone(), flat[17:].clone()]


def _after(
    make: Make, options: Mapping[str, Any], start: list[torch.Tensor], gradients: Sequence[list[torch.Tensor]]
) -> list[torch.Tensor]:
    parameters = [torch.nn.Parameter(t.clone()) for t in start]
    optimizer = make(parameters, **options)
    for step in gradients:
        for parameter, gradient in zip(parameters, step, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
    return [p.detach() for p in parameters]
