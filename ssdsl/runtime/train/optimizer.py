"""Any of torch's optimizers on what a rank holds: a weight, its part, or under ZeRO some elements of its part.

An optimizer that treats each element by itself (Adam, SGD) gives the same numbers on parts as on the whole weight. One
that looks at a weight as a whole (Adafactor, Muon) does not; which it is, is found out by trying.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch

from ..errors import EngineError
from ..flat import FlatParam
from ..held import Held
from ..state import State

Groups = Mapping[str, Mapping[str, Any]]
Make = type[torch.optim.Optimizer]


def optimizers() -> dict[str, Make]:
    """Those of torch.optim by their names in small letters."""
    kinds = [v for v in vars(torch.optim).values() if isinstance(v, type) and issubclass(v, torch.optim.Optimizer)]
    return {kind.__name__.lower(): kind for kind in kinds if kind is not torch.optim.Optimizer}


@dataclass(eq=False)
class Stepped:
    """What the optimizer steps on, of one weight.

    `parameter` shares the memory of what is trained; of a weight in half precision it is a copy in float32, the master
    (Micikevicius et al. 2018).
    """

    held: Held
    flat: FlatParam
    parameter: torch.nn.Parameter

    @property
    def name(self) -> str:
        """The weight's."""
        return self.held.name

    @property
    def is_master(self) -> bool:
        """Whether the parameter has memory and a type of its own."""
        return self.parameter.dtype != self.held.tensor.dtype

    @torch.no_grad()
    def give_back(self) -> None:
        """What is trained takes the value of its master."""
        if self.is_master:
            self.held.tensor.copy_(self.parameter)

    @torch.no_grad()
    def take(self) -> None:
        """The master takes the value of what is trained."""
        if self.is_master:
            self.parameter.copy_(self.held.tensor)


def stepped(flats: Iterable[FlatParam], held: Sequence[Held], masters: State | None) -> list[Stepped]:
    """What an optimizer steps on, in the order of what is held; `masters` has the numbers that the copies begin with.

    Without them it steps on what is trained.
    """
    flat_of = {name: flat for flat in flats for name in flat.stepped()}
    trained = [one for one in held if one.name in flat_of]
    return [Stepped(one, flat_of[one.name], torch.nn.Parameter(_begun(one, masters))) for one in trained]


def _begun(held: Held, masters: State | None) -> torch.Tensor:
    if masters is None:
        return held.tensor
    piece = masters.part(held.piece).to(held.tensor.device, torch.float32, copy=True)
    return piece if held.span is None else piece.flatten()[slice(*held.span)].clone()


class Optimizer:
    """An optimizer of this rank, of as many parameter groups on each: one per entry of `groups`, then all the rest.

    A key of `groups` has patterns of names (`"*.bias|*norm*"`); a weight belongs to the first that fits. `names` are
    those of all trained weights, here or elsewhere. Raises EngineError: a pattern fits none; the optimizer cannot
    step on parts of weights, or does not take the options.
    """

    def __init__(
        self,
        make: Make,
        weights: Sequence[Stepped],
        names: Sequence[str],
        groups: Groups | None,
        options: Mapping[str, Any],
    ) -> None:
        self.weights, self.keys = weights, [*(groups or {}), None]
        self.chosen = {name: _group_of(name, groups or {}) for name in names}
        for key in groups or {}:
            if key not in self.chosen.values():
                raise EngineError(f"`{key}`: no trained weight has such a name", f"they are {_some(names)}")
        _check(make, weights, options)
        self.torch = make([self._group(key, (groups or {}).get(key or "", {})) for key in self.keys], **options)

    def _group(self, key: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
        return {"params": [w.parameter for w in self.weights if self.chosen[w.name] == key], **options}

    def state(self, weight: Stepped) -> dict[str, Any]:
        """What the optimizer keeps of a weight, such as its moments; empty before its first step."""
        found: dict[str, Any] = self.torch.state.get(weight.parameter, {})
        return found

    def group(self, name: str) -> int:
        """The number of a weight's parameter group."""
        return self.keys.index(self.chosen[name])


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


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
