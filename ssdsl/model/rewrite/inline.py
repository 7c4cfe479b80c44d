"""Puts the calls that a rule makes in place of a captured call.

A rule is a function of torch's operators that computes what the call computes. It runs on tensors without numbers, so
torch tells shapes and types. Its results get the names of the call's results; other values are named after the call and
what they are, as the rule says (`named`), or the operators that make them: `cross_entropy_loss_count`, `mean_div`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from ssdsl.model.capture.call import CapturedCall, Tensor
from ssdsl.model.capture.capture import Capture, kind_of, tensor_like
from ssdsl.model.capture.record import RecordedCall, recording
from ssdsl.model.graph import Ref, replace_refs
from ssdsl.model.rewrite.calls import temporary, with_arguments

Rule = Callable[..., Any]


def inline(
    rule: Rule,
    call: CapturedCall,
    capture: Capture,
    given: Sequence[Any] | None = None,
    kind: str = "",
    tensors: dict[str, torch.Tensor] | None = None,
) -> list[CapturedCall]:
    """The calls of a rule in place of a call; the call itself if the rule returns NotImplemented.

    The rule takes the arguments that are `given`, or those of the call, all that may be by position. Calls that make
    a result of the call are of this `kind`, or of that of their operator. A rule that reads further values adds their
    `tensors`, by name.
    """
    whole = with_arguments(call) if given is None else replace(call, args=tuple(given), kwargs={})
    tensors = {} if tensors is None else tensors
    tensors.update((name, on_meta(capture.tensors[name])) for name in whole.refs())
    args, kwargs = replace_refs((whole.args, whole.kwargs), tensors.__getitem__)
    with recording() as recorder:
        results = rule(*args, **kwargs)
    if results is NotImplemented:
        return [call]
    results = [results] if isinstance(results, torch.Tensor) else results
    names = {id(tensor): name for name, tensor in tensors.items()}
    for tensor, name in zip(results, call.outputs, strict=False):
        names[id(tensor)], capture.tensors[name] = name, tensor_like(tensor)
    for made in recorder.calls:
        for tensor in (t for t in made.results if id(t) not in names):
            word = recorder.words.get(id(tensor), kind_of(made.target))
            names[id(tensor)] = temporary(f"{call.name}_{word}", capture, tensor_like(tensor))
    return [_as_call(made, call, names, kind) for made in recorder.calls]


def _as_call(made: RecordedCall, call: CapturedCall, names: Mapping[int, str], kind: str) -> CapturedCall:
    """A recorded call as a captured one, at the place of another call."""
    outputs = tuple(names[id(tensor)] for tensor in made.results)
    args, kwargs = (_with_names(item, names) for item in (made.args, made.kwargs))
    name = call.name if call.outputs[0] in outputs else outputs[0]
    kind = kind if kind and not set(outputs).isdisjoint(call.outputs) else kind_of(made.target)
    return CapturedCall(name, kind, made.target, args, kwargs, call.path, call.source, outputs)


def _with_names(item: Any, names: Mapping[int, str]) -> Any:
    """An argument with references in place of tensors, and tuples in place of lists."""
    match item:
        case torch.Tensor():
            return Ref(names[id(item)])
        case tuple() | list():
            return tuple(_with_names(part, names) for part in item)
        case dict():
            return {word: _with_names(part, names) for word, part in item.items()}
    return item


def on_meta(tensor: Tensor) -> torch.Tensor:
    """A tensor without numbers, of which no call is recorded."""
    with torch._C._DisableTorchDispatch():
        return torch.empty(tensor.shape, dtype=getattr(torch, tensor.dtype), device="meta")
