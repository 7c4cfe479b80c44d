"""The training state in a checkpoint: tensors by the model's names, and facts that a training loop needs to continue.

Weights in half precision are saved as their float32 masters, so a checkpoint does not depend on the precision either.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch

from ..checkpoints.content import Content, Scalar, content_of
from ..checkpoints.loader import new_state, read_on_all
from ..checkpoints.reader import Checkpoint
from ..errors import EngineError
from ..layout.parts import LocalTensor
from ..ranks.control import Control
from .optimizer import OptimizedParam, Optimizer
from .schedulers import schedulers_of

GRADIENTS = ("gradients",)  # accumulated by steps without update


def tensors_of(held: Iterable[LocalTensor], weights: Iterable[OptimizedParam]) -> list[LocalTensor]:
    """Weights and buffers in the form in which they are saved."""
    masters = {w.name: w.parameter.detach() for w in weights}
    return [replace(one, tensor=masters.get(one.name, one.tensor)) for one in held]


def content(
    held: Iterable[LocalTensor],
    weights: list[OptimizedParam],
    optimizer: Optimizer | None,
    facts: dict[str, Any],
    gradients: Mapping[str, torch.Tensor] | None = None,
) -> Content:
    """All that this rank saves; `gradients` are accumulated gradients by weight."""
    kept = tensors_of(held, weights)
    state: dict[str, dict[str, LocalTensor | Scalar | None]] = {}
    if optimizer is not None:
        facts = facts | {"optimizer": _facts_of(optimizer)}
        for weight in weights:
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


def _plain_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """A scheduler's state without values that only its own program has, such as functions."""
    return {name: value for name, value in state.items() if not callable(value)}


def restore(
    checkpoint: Checkpoint,
    held: Iterable[LocalTensor],
    weights: list[OptimizedParam],
    optimizer: Optimizer | None,
    control: Control,
    *,
    strict: bool,
    cast: bool,
) -> dict[str, torch.Tensor]:
    """Reads a checkpoint that `content` made, under any plan; the optimizer's state only if there is an optimizer.

    Returns the accumulated gradients, by weight. Raises EngineError on all ranks for a checkpoint of another model or
    optimizer, or a damaged file.
    """
    kept = tensors_of(held, weights)
    state: dict[str, dict[str, LocalTensor | Scalar]] = {}
    facts = checkpoint.facts.get("optimizer")
    with control.together():
        if optimizer is not None and facts is not None:
            _fit(optimizer, facts)
            state = new_state(checkpoint, [replace(w.held, tensor=w.parameter.detach()) for w in weights])
    stored = {name for (name,) in checkpoint.under(*GRADIENTS)}
    gradients = {w.name: torch.zeros_like(w.parameter.detach()) for w in weights if w.name in stored}
    room = [replace(w.held, tensor=gradients[w.name]) for w in weights if w.name in stored]
    wanted = content_of(kept, state, {}, {GRADIENTS: room})
    read_on_all(checkpoint, wanted.tensors, control, strict=strict, cast=cast)
    for weight in weights:
        weight.give_back()
    if optimizer is not None and facts is not None:
        _set(optimizer, weights, state, facts)
    return gradients


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
    weights: list[OptimizedParam],
    state: Mapping[str, Mapping[str, LocalTensor | Scalar]],
    facts: Mapping[str, Any],
) -> None:
    """Puts the saved state into the optimizer."""
    group_of = {id(p): group for group in optimizer.torch.param_groups for p in group["params"]}
    optimizer.torch.state.clear()
    for weight in weights:
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
