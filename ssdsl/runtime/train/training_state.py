"""The training state in a checkpoint: tensors by the model's names, and facts that a training loop needs to continue.

Weights in half precision are saved as their float32 masters, so a checkpoint does not depend on the precision either.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from ..checkpoints.content import Content, Scalar, content_of
from ..checkpoints.loader import StateSource, new_state, read_on_all
from ..errors import EngineError
from ..ranks.control import Control
from ..step.parts import LocalTensor
from .optimizer import OptimizedParam, Optimizer
from .schedulers import schedulers_of
from .step_end import StepEnd

GRADIENTS = ("gradients",)  # accumulated by steps without update


def tensors_of(held: Iterable[LocalTensor], ending: StepEnd) -> list[LocalTensor]:
    """Weights and buffers in the form in which they are saved: those with a home as that has them."""
    masters = {w.name: w.parameter.detach() for w in ending.weights}
    if ending.homes is None:
        return [replace(one, tensor=masters.get(one.name, one.tensor)) for one in held]
    away, params = ending.homes.names, ending.homes.params
    here = [replace(one, tensor=masters.get(one.name, one.tensor)) for one in held if one.name not in away]
    return [*here, *(replace(p.held, tensor=p.parameter.detach()) for p in params)]


def content(held: Iterable[LocalTensor], ending: StepEnd, facts: dict[str, Any]) -> Content:
    """All that this rank saves, also accumulated gradients."""
    kept, weights, optimizers, gradients = (
        tensors_of(held, ending),
        ending.weights,
        ending.optimizers,
        ending.accumulated,
    )
    state: dict[str, dict[str, LocalTensor | Scalar | None]] = {}
    if optimizers:
        facts = facts | {"optimizers": [_facts_of(optimizer) for optimizer in optimizers]}
    for optimizer in optimizers:
        for weight in optimizer.weights:
            state[weight.name] = {
                key: _local_state(weight, value) for key, value in optimizer.state(weight).items() if value is not None
            }
    waiting = [replace(w.held, tensor=gradients[w.name]) for w in weights if w.name in gradients] if gradients else []
    return content_of(kept, state, facts, {GRADIENTS: waiting})


def _local_state(weight: OptimizedParam, value: Any) -> LocalTensor | Scalar:
    """A state tensor of the weight's shape is cut as the weight is; other tensors belong to a weight that is whole."""
    if not isinstance(value, torch.Tensor) or value.dim() == 0:
        return value  # type: ignore[no-any-return]
    if value.shape == weight.parameter.shape:
        return replace(weight.held, tensor=value)
    piece = replace(weight.held.piece, shape=tuple(value.shape), takes=())
    return replace(weight.held, piece=piece, span=None, tensor=value)


def _facts_of(optimizer: Optimizer) -> dict[str, Any]:
    names: list[list[str]] = [[] for _ in optimizer.torch.param_groups]
    for name in optimizer.chosen:
        names[optimizer.group(name)].append(name)
    groups = zip(optimizer.torch.param_groups, names, strict=True)
    return {
        "class": type(optimizer.torch).__name__,
        "param_groups": [{**group, "params": own} for group, own in groups],
        "schedulers": [_plain_state(s.state_dict()) for s in schedulers_of(optimizer.torch)],
    }


def saved_optimizers(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The facts of the optimizers whose state a checkpoint has. Until there could be several, it had those of one."""
    return facts["optimizers"] if "optimizers" in facts else [facts["optimizer"]] if facts.get("optimizer") else []


def _plain_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """A scheduler's state without values that only its own program has, such as functions."""
    return {name: value for name, value in state.items() if not callable(value)}


def restore(
    checkpoint: StateSource,
    held: Iterable[LocalTensor],
    ending: StepEnd,
    control: Control,
    *,
    strict: bool,
    cast: bool,
) -> dict[str, torch.Tensor]:
    """Reads a checkpoint that `content` made, under any plan; the optimizers' state only if there are optimizers.

    Returns the accumulated gradients, by weight. Raises EngineError on all ranks for a checkpoint of another model or
    optimizer, or a damaged file.
    """
    kept, weights, optimizers = tensors_of(held, ending), ending.weights, ending.optimizers
    state: dict[str, dict[str, LocalTensor | Scalar]] = {}
    saved = saved_optimizers(checkpoint.facts)
    with control.together():
        if optimizers and saved:
            for optimizer, facts in pairs(optimizers, saved):
                _fit(optimizer, facts)
            state = new_state(checkpoint, [replace(w.held, tensor=w.parameter.detach()) for w in ending.optimized])
    stored = {name for (name,) in checkpoint.under(*GRADIENTS)}
    ending.waiting = stored & (ending.homes.names if ending.homes is not None else frozenset())
    gradients = {w.name: torch.zeros_like(w.parameter.detach()) for w in weights if w.name in stored}
    room = [replace(w.held, tensor=gradients[w.name]) for w in weights if w.name in stored]
    wanted = content_of(kept, state, {}, {GRADIENTS: room})
    read_on_all(checkpoint, wanted.tensors, control, strict=strict, cast=cast)
    for weight in weights:
        weight.give_back()
    if ending.homes is not None:
        ending.homes.spread(ending.homes.names)
    for optimizer, facts in pairs(optimizers, saved) if optimizers and saved else ():
        _set(optimizer, state, facts)
    return gradients


def pairs(
    optimizers: Sequence[Optimizer], saved: Sequence[Mapping[str, Any]]
) -> list[tuple[Optimizer, Mapping[str, Any]]]:
    """Each optimizer with the facts of the one that was saved with its weights. Raises EngineError."""
    if len(optimizers) == len(saved) == 1:
        return [(optimizers[0], saved[0])]
    if len(optimizers) != len(saved):
        raise EngineError(
            f"the checkpoint has the state of {len(saved)} optimizer{'' if len(saved) == 1 else 's'}, and the engine "
            f"has {len(optimizers)}",
            "make those that it was saved with before loading",
        )
    found = []
    for optimizer in optimizers:
        mine = set(optimizer.chosen)
        facts = next((f for f in saved if mine == {n for group in f["param_groups"] for n in group["params"]}), None)
        if facts is None:
            raise EngineError(
                f"no optimizer of the checkpoint has the weights of the engine's with `{min(mine)}`",
                "name the weights of each optimizer as in the run that saved",
            )
        found.append((optimizer, facts))
    return found


def _fit(optimizer: Optimizer, facts: Mapping[str, Any]) -> None:
    """Raises EngineError for the state of another optimizer. A checkpoint that was made from a torch file does not know
    its class, only the options of its groups."""
    mine, saved = type(optimizer.torch).__name__, facts.get("class")
    if saved is not None and saved != mine:
        raise EngineError(
            f"the checkpoint has the state of {saved}, and the engine has {mine}",
            f"make `engine.optimizer(torch.optim.{saved}, ...)` before loading",
        )
    if saved is None:
        own, given = set(optimizer.torch.defaults), {name for group in facts["param_groups"] for name in group}
        unknown, lacking = given - own - {"params", "initial_lr"}, own - given
        if unknown and lacking:  # of another version of torch one of them may have more
            raise EngineError(
                f"the checkpoint has the state of another optimizer than {mine}: one with {', '.join(sorted(unknown))}",
                "make the optimizer that it was saved with before loading",
            )
    if len(facts["param_groups"]) != len(optimizer.torch.param_groups):
        raise EngineError(
            f"the checkpoint has {len(facts['param_groups'])} parameter groups, and the engine's optimizer has "
            f"{len(optimizer.torch.param_groups)}",
            "make the optimizer with the groups that it was saved with",
        )


def _set(
    optimizer: Optimizer,
    state: Mapping[str, Mapping[str, LocalTensor | Scalar]],
    facts: Mapping[str, Any],
) -> None:
    """Puts the saved state into the optimizer."""
    group_of = {id(p): group for group in optimizer.torch.param_groups for p in group["params"]}
    optimizer.torch.state.clear()
    for weight in optimizer.weights:
        for key, value in state.get(weight.name, {}).items():
            if isinstance(value, LocalTensor):
                value = value.tensor
            elif isinstance(value, torch.Tensor) and _is_beside(key, group_of[id(weight.parameter)]):
                value = value.to(weight.parameter.device)
            optimizer.torch.state[weight.parameter][key] = value
    for group, saved in zip(optimizer.torch.param_groups, facts["param_groups"], strict=True):
        group.update({k: v for k, v in saved.items() if k not in ("params", "fused", "foreach")})
    for scheduler, saved in zip(schedulers_of(optimizer.torch), facts.get("schedulers", ()), strict=False):
        scheduler.load_state_dict(dict(saved))


def _is_beside(key: str, group: Mapping[str, Any]) -> bool:
    """Whether a number of the state lies on the weight's device: the count of steps only for kernels that read it
    there, all others always, as torch's own `load_state_dict` puts them."""
    return key != "step" or bool(group.get("fused") or group.get("capturable"))
