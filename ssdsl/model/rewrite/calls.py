"""Makes captured calls of others: with other arguments or operators, or without those that nothing reads."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ssdsl.model.capture.call import CapturedCall, Tensor
from ssdsl.model.capture.capture import Capture, kind_of
from ssdsl.model.graph import Ref, rename_refs


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


def changed_statistics(call: CapturedCall) -> tuple[str, ...]:
    """The buffers that a normalised call changes in place: the running statistics of a batch norm in training."""
    if call.kind != "batch_norm" or call.args[5] is not True:
        return ()
    return tuple(a.value for a in call.args[3:5] if isinstance(a, Ref))


def without_unread(capture: Capture) -> Capture:
    """The capture without calls that nothing reads. Rewrites leave some, such as those that compute what a `copy`
    overwrites; an evaluation has some that only the next step would read."""
    wanted, kept = capture.results(), []
    for call in reversed(capture.calls):
        if not wanted.isdisjoint(call.outputs) or changed_statistics(call):
            wanted.update(call.refs())
            kept.append(call)
    return replace(capture, calls=kept[::-1])
