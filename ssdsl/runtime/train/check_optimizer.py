"""Says of an optimizer, before it is made, whether it takes the same steps on what a rank has as on one device.

An elementwise optimizer (Adam, SGD) gives the same numbers on parts as on whole weights. One that looks at a weight as
a whole (Adafactor, Muon) does not, and one that looks at all weights together (Prodigy, steps of a normalised gradient)
needs all of them on each rank. Trial steps on small tensors tell them apart.
"""

import reprlib
from collections.abc import Mapping, Sequence
from enum import Enum
from fnmatch import fnmatchcase
from typing import Any

import torch

from ..errors import EngineError
from ..step.parts import LocalTensor

Groups = Mapping[str, Mapping[str, Any]]
Make = type[torch.optim.Optimizer]
NEEDS = "see what this optimizer needs"
TRIAL_LR = 0.01


def some_of(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def group_of(names: Sequence[str], groups: Groups) -> str | None:
    """The first key of which a pattern matches one of a weight's names."""
    return next((k for k in groups if any(fnmatchcase(n, p.strip()) for p in k.split("|") for n in names)), None)


def check_form(make: Any, groups: Any) -> None:
    """Raises EngineError for an optimizer that is not a class or a function, and for groups that are no
    dictionaries."""
    if isinstance(make, torch.optim.Optimizer) or not callable(make):
        found = f"an instance of {type(make).__name__}" if isinstance(make, torch.optim.Optimizer) else repr(make)
        change = "as in `engine.optimizer(torch.optim.AdamW, lr=1e-3)`: the engine gives it the weights"
        raise EngineError(f"the optimizer is {found}", f"give its class and its options, {change}")
    if not isinstance(groups, Mapping) or not all(isinstance(options, Mapping) for options in groups.values()):
        change = 'as in `groups={"*.bias|*norm*": {"weight_decay": 0.0}}`'
        raise EngineError(
            "`groups` is not a dictionary of dictionaries", f"give options by patterns of names, {change}"
        )


def check_used(key: str, chosen: Mapping[str, str | None], names: Mapping[str, Sequence[str]]) -> None:
    """Raises EngineError for a pattern that matches no trained weight."""
    if key in chosen.values():
        return
    taken = next((name for name in chosen if group_of(names[name], {key: {}}) is not None), None)
    if taken is not None:
        reason = f"`{key}`: all weights that fit it are in groups before it, as is `{taken}` in `{chosen[taken]}`"
        raise EngineError(reason, "put the narrower pattern first: a weight belongs to the first that fits")
    raise EngineError(f"`{key}`: no trained weight has such a name", f"they are {some_of(list(chosen))}")


def called(make: Any) -> str:
    """The name of an optimizer's class, or of the function that makes one."""
    return getattr(make, "__name__", type(make).__name__)


class _Reach(Enum):
    """What the step of an element depends on, beside its own gradients."""

    ELEMENT = "nothing"
    WEIGHT = "other elements of its weight"
    ALL = "other weights"
    DRAWN = "random numbers"


def check_reach(
    make: Make,
    weights: Sequence[LocalTensor],
    elsewhere: str | None,
    options: Mapping[str, Any],
    group: Mapping[str, Any],
    by_matrix: str,
) -> None:
    """Raises EngineError for a group that the optimizer cannot step on as it would on one device. `elsewhere` is a
    weight of the group that only other ranks hold."""
    cut = next((w.name for w in weights if w.span is not None or w.piece.takes), None)
    listed = ", ".join(f"{name}={reprlib.repr(value)}" for name, value in {**options, **group}.items())
    try:
        reach = _reach_of(make, options, group)
    except EngineError:
        raise
    except Exception as error:  # a user's optimizer may raise anything
        raise EngineError(f"`{called(make)}({listed})` cannot take a step: {error}", NEEDS) from error
    if reach in (_Reach.ALL, _Reach.DRAWN) and (cut or elsewhere) is not None:
        does = "looks at all weights together" if reach is _Reach.ALL else "draws random numbers"
        where = f"has `{cut}` in parts" if cut is not None else f"has `{elsewhere}` on other ranks"
        raise EngineError(
            f"`{called(make)}` {does}, and this plan {where}",
            "take an optimizer that treats each element by itself (AdamW, SGD), or a plan in which each rank has all "
            "weights (data_parallel)",
        )
    if reach is _Reach.WEIGHT and cut is not None:
        raise EngineError(
            f"`{called(make)}` looks at a weight as a whole, and this plan has `{cut}` in parts",
            f"write `{by_matrix}` into the plan, or take an optimizer that treats each element by itself (AdamW, SGD)",
        )


def check_sparse(make: Make, name: str, options: Mapping[str, Any]) -> None:
    """Raises EngineError for an optimizer that could not train this weight on one device because its gradient is
    sparse."""
    if reason := refuses_sparse(make, options):
        raise EngineError(
            f"on one device the gradients of `{name}` are sparse, and `{called(make)}` does not take them: {reason}",
            "make the embedding without `sparse=True`, or take an optimizer that does (SGD, Adagrad)",
        )


def refuses_sparse(make: Make, options: Mapping[str, Any]) -> str:
    """Torch's reason why an optimizer does not take sparse gradients; "" if it does.

    >>> refuses_sparse(torch.optim.SGD, {"lr": 0.1})
    ''
    """
    weight = torch.nn.Parameter(torch.zeros(2, 1))
    weight.grad = torch.eye(2, 1).to_sparse(1)
    try:
        make([weight], **options).step()
    except Exception as error:  # an optimizer may raise anything
        return str(error)
    return ""


def _reach_of(make: Make, options: Mapping[str, Any], group: Mapping[str, Any]) -> _Reach:
    """Finds out by some steps: on two weights together, on each by itself, and on two parts of the first, each
    flattened and by itself, as ranks would have them.

    Gradients are of several sizes, since an optimizer may look at their norm only where it is large. The numbers that
    an optimizer draws are not taken from the user's generator.
    """
    draw = torch.Generator().manual_seed(0)
    weights = [torch.randn(shape, generator=draw) for shape in ((6, 8), (5, 7))]
    sizes = torch.tensor([1.0, 100.0, 0.01])[:, None, None]
    gradients = [sizes * torch.randn(3, *w.shape, generator=draw) for w in weights]

    drawn = False

    def updates(start: list[torch.Tensor], gradients: list[torch.Tensor]) -> torch.Tensor:
        nonlocal drawn
        with torch.random.fork_rng(devices=[]):
            before = torch.random.get_rng_state()
            after = _after(make, options, group, start, list(zip(*gradients, strict=True)))
            drawn = drawn or not torch.equal(before, torch.random.get_rng_state())
        return torch.cat([(x - x0).flatten() for x, x0 in zip(after, start, strict=True)])

    def apart(start: list[torch.Tensor], gradients: list[torch.Tensor]) -> torch.Tensor:
        return torch.cat([updates([x], [g]) for x, g in zip(start, gradients, strict=True)])

    together = updates(weights, gradients)
    each = apart(weights, gradients)
    if drawn:
        return _Reach.DRAWN
    if not _are_alike(together, each):
        return _Reach.ALL
    try:
        parts = apart(
            _two_parts(weights[0]), [torch.stack(g) for g in zip(*map(_two_parts, gradients[0]), strict=True)]
        )
    except Exception:  # it needs a matrix
        return _Reach.WEIGHT
    return _Reach.ELEMENT if _are_alike(each[: len(parts)], parts) else _Reach.WEIGHT


def _are_alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-3, atol=1e-6, equal_nan=True)


def _two_parts(x: torch.Tensor) -> list[torch.Tensor]:
    flat = x.flatten()
    return [flat[:17].clone(), flat[17:].clone()]


def _after(
    make: Make,
    options: Mapping[str, Any],
    group: Mapping[str, Any],
    start: Sequence[torch.Tensor],
    gradients: Sequence[Sequence[torch.Tensor]],
) -> list[torch.Tensor]:
    """The weights after a step on each of `gradients`, with a learning rate that changes them enough to be compared:
    the user's may be tiny, and 0 where a schedule begins."""
    parameters = [torch.nn.Parameter(t.clone()) for t in start]
    optimizer = make([{"params": parameters, **group}], **options)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise EngineError(f"`{called(make)}` makes {type(optimizer).__name__}", "give a torch.optim.Optimizer")
    if unknown := [name for name in group if optimizer.defaults and name not in optimizer.defaults]:
        has = ", ".join(optimizer.defaults)
        raise EngineError(f"`{called(make)}` has no option `{unknown[0]}` for a group", f"its options are {has}")
    for made in optimizer.param_groups:
        if (lr := made.get("lr")) is not None:
            made["lr"] = torch.full_like(lr, TRIAL_LR) if isinstance(lr, torch.Tensor) else TRIAL_LR
    for step in gradients:
        for parameter, gradient in zip(parameters, step, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
    return [p.detach() for p in parameters]
