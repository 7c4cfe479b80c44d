"""Makes captured calls of others: renamed, with other arguments or operators, of a rule, or without those that nothing
reads.

A rule is a function of torch's operators that computes what a call computes. It runs on tensors without numbers, so
torch tells shapes and types. Its results get the names of the call's results; other values are named after the call and
what they are, as the rule says (`named`), or the operators that make them: `cross_entropy_loss_count`, `mean_div`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from ssdsl.model.capture.call import CapturedCall, Tensor
from ssdsl.model.capture.capture import Capture, kind_of, tensor_like
from ssdsl.model.capture.record import RecordedCall, recording
from ssdsl.model.graph import Ref, changed_statistics, rename_refs, replace_refs
from ssdsl.model.memory.memory_order import asks_for_order, order_of
from ssdsl.model.ops.registry import row
from ssdsl.record import replace


def rename(call: CapturedCall, names: Mapping[str, str]) -> CapturedCall:
    """The call with other values as arguments: `names` maps old to new."""
    args, kwargs = rename_refs((call.args, call.kwargs), names)
    return replace(call, args=args, kwargs=kwargs)


def rename_results(capture: Capture, names: Mapping[str, str]) -> None:
    """Makes other values the results of a capture: `names` maps old to new."""
    capture.loss = names.get(capture.loss, capture.loss)
    capture.updates = {buffer: names.get(value, value) for buffer, value in capture.updates.items()}
    capture.outputs = {name: names.get(value, value) for name, value in capture.outputs.items()}


def retarget(call: CapturedCall, target: Any, *args: Any, **kwargs: Any) -> CapturedCall:
    """A call of another operator in place of one."""
    return replace(call, kind=kind_of(target), target=target, args=args, kwargs=kwargs)


def with_arguments(call: CapturedCall, **words: Any) -> CapturedCall:
    """The call with some arguments replaced by name; all that may be are given by position."""
    parameters = call.target._schema.arguments
    args = tuple(words.get(p.name, call.argument(p.name)) for p in parameters if not p.kwarg_only)
    kwargs = {p.name: call.kwargs[p.name] for p in parameters if p.kwarg_only and p.name in call.kwargs}
    return replace(call, args=args, kwargs=kwargs)


def temporary(name: str, capture: Capture, tensor: Tensor) -> str:
    """The name of a new value, with a number if others have it; registers its tensor."""
    found, number = name, 1
    while found in capture.tensors:
        found, number = f"{name}_{number}", number + 1
    capture.tensors[found] = tensor
    return found


def learning(capture: Capture) -> set[str]:
    """The values that may have a gradient: weights that are trained, and results that gradients flow through."""
    found = {name for name in capture.origins if capture.tensors[name].differentiable}
    for call in capture.calls:
        if row(call).stops_gradient or found.isdisjoint(call.refs()):
            continue
        made = [o for o in call.outputs if o in capture.tensors]
        found.update(o for o in made if capture.tensors[o].has_fractions)
    return found


def without_unread(capture: Capture) -> Capture:
    """The capture without calls that nothing reads. Rewrites leave some, such as those that compute what a `copy`
    overwrites; an evaluation has some that only the next step would read."""
    wanted, kept = capture.results(), []
    for call in reversed(capture.calls):
        if not wanted.isdisjoint(call.outputs) or changed_statistics(call.kind, call.args):
            wanted.update(call.refs())
            kept.append(call)
    return replace(capture, calls=kept[::-1])


# -- calls by a rule ---------------------------------------------------------------------------------------------------


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
    read = (leaf for leaf in tree_leaves((made.args, made.kwargs)) if isinstance(leaf, torch.Tensor))
    orders = tuple(map(order_of, read)) if asks_for_order(made.target) else ()
    return CapturedCall(name, kind, made.target, args, kwargs, call.path, call.source, outputs, orders=orders)


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
