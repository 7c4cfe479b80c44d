"""What a user's function must return: a module, the inputs of one batch or several, and the names of their axes."""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ssdsl.lang.suggest import suggest
from ssdsl.model.errors import BadAxes, BadInputs, BadModel
from ssdsl.model.source import Model
from ssdsl.text.diagnostic import Diagnostic, PlanError
from ssdsl.text.source import Span

Batch = dict[str, torch.Tensor]


def check_model(span: Span | None, name: str, function: str, result: Any) -> Model:
    """The model that the function returned; `span` shows the function. Each check builds on the ones before."""
    if not (isinstance(result, tuple) and len(result) == 3):
        what = f"a tuple of {len(result)}" if isinstance(result, tuple) else _kind(result)
        fact = f"function `{function}` returns {what}, not (module, inputs, axes)"
        raise PlanError(BadModel(span, fact, "return module, inputs, axes"))
    module, inputs, axes = result
    if not isinstance(module, torch.nn.Module):
        fact = f"function `{function}` returns {_kind(module)} where its module should be"
        raise PlanError(
            BadModel(span, fact, "return an instance of torch.nn.Module first: return MyModel(), inputs, axes")
        )
    batches = _batches(span, module, inputs)
    return Model(name, module, batches, _axes(span, axes, batches[0]))


def _batches(span: Span | None, module: torch.nn.Module, inputs: Any) -> tuple[Batch, ...]:
    many = inputs if isinstance(inputs, list) else [inputs]
    if not many:
        raise PlanError(BadInputs(span, "the list of batches is empty", "return at least one batch"))
    batches = tuple(_batch(span, module, one) for one in many)
    for number, batch in enumerate(batches):
        if difference := _difference(batches[0], batch):
            fact = f"batch {number} is unlike batch 0: {difference}"
            raise PlanError(BadInputs(span, fact, "make all batches alike: the plan is compiled once for all of them"))
    return batches


def _batch(span: Span | None, module: torch.nn.Module, inputs: Any) -> Batch:
    """One batch by the names of forward's parameters."""
    parameters = inspect.signature(module.forward).parameters.values()
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    known = f"forward takes {', '.join(names) or 'nothing'}"
    if isinstance(inputs, tuple):
        if len(inputs) > len(names):
            raise PlanError(
                BadInputs(span, f"there are {len(inputs)} inputs, but {known}", "give one tensor per parameter")
            )
        inputs = dict(zip(names, inputs, strict=False))
    if not isinstance(inputs, Mapping):
        change = 'return a dictionary of tensors, such as {"x": x, "labels": y}'
        raise PlanError(BadInputs(span, f"the inputs are {_kind(inputs)}", change))
    if not inputs:
        raise PlanError(BadInputs(span, "the model has no inputs", "return the tensors that forward is called with"))
    found: list[Diagnostic] = [
        BadInputs(
            span, f"input `{name}` is {_kind(value)}, not a tensor", "set what is no tensor in the module's __init__"
        )
        for name, value in inputs.items()
        if not isinstance(value, torch.Tensor)
    ]
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        found += [
            BadInputs(span, f"forward has no parameter `{name}`", f"use its names: {known}", suggest(name, names))
            for name in inputs
            if name not in names
        ]
    needed = [p.name for p in parameters if p.name in names and p.default is p.empty and p.name not in inputs]
    found += [
        BadInputs(span, f"no input is given for forward's parameter `{n}`", "add it to the inputs") for n in needed
    ]
    if found:
        raise PlanError(*found)
    return dict(inputs)


def _difference(first: Batch, other: Batch) -> str:
    if list(first) != list(other):
        return f"it has {', '.join(other)} and not {', '.join(first)}"
    for name, tensor in other.items():
        if (tensor.shape, tensor.dtype) != (first[name].shape, first[name].dtype):
            return f"`{name}` is {_shape(tensor)} and not {_shape(first[name])}"
    return ""


def _shape(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}[{', '.join(map(str, tensor.shape))}]"


def _axes(span: Span | None, axes: Any, batch: Batch) -> dict[str, tuple[str, ...]]:
    """The names of every input's axes, as many as it has axes and each of one size."""
    if not isinstance(axes, Mapping):
        example = ", ".join(f'"{name}": ("batch", ...)' for name in list(batch)[:2])
        raise PlanError(BadAxes(span, f"the axes are {_kind(axes)}", f"return a dictionary: {{{example}}}"))
    found: list[Diagnostic] = [
        BadAxes(
            span, f"axes are named for `{name}`, which is no input", "name the axes of the inputs", suggest(name, batch)
        )
        for name in axes
        if name not in batch
    ]
    sizes: dict[str, tuple[int, str]] = {}
    for name, tensor in batch.items():
        found += _axes_of(span, name, tensor, axes.get(name), sizes)
    if found:
        raise PlanError(*found)
    return {name: tuple(axes[name]) for name in batch}


def _axes_of(
    span: Span | None, name: str, tensor: torch.Tensor, names: Any, sizes: dict[str, tuple[int, str]]
) -> Iterator[Diagnostic]:
    """What is wrong with one input's axes; `sizes` collects each name's size and the input that it comes from."""
    if names is None:
        yield BadAxes(span, f"the axes of input `{name}` have no names", f"add `{name}`, which is {_shape(tensor)}")
    elif isinstance(names, str) or not all(isinstance(n, str) and n.isidentifier() for n in names):
        yield BadAxes(
            span, f"the axes of input `{name}` are {names!r}", 'give a tuple of words, such as ("batch", "seq")'
        )
    elif len(names) != tensor.dim():
        fact = f"input `{name}` is {_shape(tensor)}, but {len(names)} of its axes have names: {', '.join(names)}"
        yield BadAxes(span, fact, "give each axis one name")
    else:
        for axis, size in zip(names, tensor.shape, strict=True):
            known, where = sizes.setdefault(axis, (size, name))
            if known != size:
                fact = f"axis `{axis}` has size {known} in `{where}` and {size} in `{name}`"
                yield BadAxes(span, fact, "give axes of different sizes different names")


def _kind(value: Any) -> str:
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
