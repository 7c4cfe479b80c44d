"""The batches of a model: tensors by the names of forward's parameters, and the names of their axes.

Axes that the user has not named get names by convention. Inputs of `transformers` models have known names, which
determine their axes. If the first axes of all inputs have one size, they are `batch`. Any other axis is called by its
input and its number, such as `x.1`, unless an operator of the model has a better name for it.
"""

import inspect
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ssdsl.lang.suggest import suggest
from ssdsl.model.load.errors import BadAxes, BadInputs
from ssdsl.runtime.data.batch import kind, text
from ssdsl.text.diagnostic import Diagnostic, PlanError
from ssdsl.text.source import Span

Batch = dict[str, torch.Tensor]
Axes = dict[str, tuple[str, ...]]

TOKENS = ("batch", "seq")
TARGETS = ("batch", "target")
# the names of axes, by the name of an input: an input with two entries may have either number of axes
CONVENTIONS: dict[str, tuple[tuple[str, ...], ...]] = {
    "input_ids": (TOKENS,),
    "inputs_embeds": ((*TOKENS, "hidden"),),
    "attention_mask": (TOKENS,),
    "token_type_ids": (TOKENS,),
    "position_ids": (TOKENS,),
    "labels": (("batch",), TOKENS),
    "pixel_values": (("batch", "channel", "height", "width"),),
    "input_features": (("batch", "mel", "frame"),),
    "input_values": (("batch", "sample"),),
}
OF_DECODERS = {  # in place of the above for models with an encoder and a decoder; `labels` belong to the decoder
    "decoder_input_ids": (TARGETS,),
    "decoder_attention_mask": (TARGETS,),
    "decoder_inputs_embeds": ((*TARGETS, "hidden"),),
    "labels": (("batch",), TARGETS),
}


def named_batch(span: Span | None, module: torch.nn.Module, inputs: Any, for_loss: bool = False) -> Batch:
    """One batch by the names of forward's parameters: a mapping, or tensors in the order of the parameters.

    With `for_loss` a function of the batch computes the loss: tensors that forward does not take are for it, and are
    called `target`, `target_1` and so on where they have no name. Raises PlanError if the batch does not fit the
    module's forward; `span` is the place that the error shows.
    """
    names = _names(module)
    known = f"forward takes {', '.join(names) or 'nothing'}"
    inputs = _by_name(span, names, known, inputs, for_loss)
    found: list[Diagnostic] = [
        BadInputs(
            span,
            f"input `{name}` is {kind(value)}, not a tensor",
            "give only tensors; set other values in the module's __init__",
        )
        for name, value in inputs.items()
        if not isinstance(value, torch.Tensor)
    ]
    found += [
        BadInputs(span, f"input `{name}` is {_shape(value)}, without a number", "give a batch with a sample or more")
        for name, value in inputs.items()
        if isinstance(value, torch.Tensor) and not value.numel()
    ]
    if not for_loss and not _takes_any(module):
        found += [
            BadInputs(span, f"forward has no parameter `{name}`", f"use its names: {known}", suggest(name, names))
            for name in inputs
            if name not in names
        ]
    required = [p.name for p in _parameters(module) if p.name in names and p.default is p.empty]
    found += [
        BadInputs(span, f"no input is given for forward's parameter `{name}`", "add it to the inputs")
        for name in required
        if name not in inputs
    ]
    if found:
        raise PlanError(*found)
    return dict(inputs)


def _by_name(span: Span | None, names: list[str], known: str, inputs: Any, for_loss: bool) -> Mapping[str, Any]:
    """The inputs by their names; further ones for a loss are called `target`, `target_1` and so on."""
    if isinstance(inputs, torch.Tensor):
        inputs = (inputs,)
    if isinstance(inputs, (tuple, list)):
        if len(inputs) > len(names) and not for_loss:
            fact = f"there are {len(inputs)} inputs, but {known}"
            raise PlanError(BadInputs(span, fact, "give one tensor per parameter"))
        further = (f"target_{i}" if i else "target" for i in itertools.count())
        inputs = dict(zip(itertools.chain(names, further), inputs, strict=False))
    if not isinstance(inputs, Mapping):
        change = 'give a dictionary of tensors, such as {"x": x, "labels": y}'
        raise PlanError(BadInputs(span, f"the inputs are {kind(inputs)}", change))
    if not inputs:
        raise PlanError(BadInputs(span, "the model has no inputs", "give the tensors that forward is called with"))
    return inputs


def cast(batch: Mapping[str, torch.Tensor], dtype: torch.dtype) -> Batch:
    """The batch with its floating-point numbers in this type."""
    return {name: t.to(dtype) if t.is_floating_point() else t for name, t in batch.items()}


def taken(module: torch.nn.Module, batch: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
    """The part of a batch that a module's forward takes."""
    if _takes_any(module):
        return batch
    names = _names(module)
    return {name: tensor for name, tensor in batch.items() if name in names}


def _parameters(module: torch.nn.Module) -> list[inspect.Parameter]:
    return list(inspect.signature(module.forward).parameters.values())


def _names(module: torch.nn.Module) -> list[str]:
    """The parameters of forward that a batch may give."""
    return [p.name for p in _parameters(module) if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]


def _takes_any(module: torch.nn.Module) -> bool:
    """Whether forward takes inputs of any name: it has `**kwargs`."""
    return any(p.kind is p.VAR_KEYWORD for p in _parameters(module))


def difference(first: Batch, other: Batch) -> str:
    """The first difference between two batches of one model, or ""."""
    if list(first) != list(other):
        return f"it has {', '.join(other)} and not {', '.join(first)}"
    for name, tensor in other.items():
        if (tensor.shape, tensor.dtype) != (first[name].shape, first[name].dtype):
            return f"`{name}` is {_shape(tensor)} and not {_shape(first[name])}"
    return ""


def named_axes(span: Span | None, module: torch.nn.Module, batch: Batch, axes: Any) -> Axes:
    """The names of every input's axes: those given in `axes`, and others by convention.

    Raises PlanError if an input has not as many names as axes, or one name has two sizes.
    """
    if axes is None:
        return axes_of(module, batch)
    if not isinstance(axes, Mapping):
        example = ", ".join(f'"{name}": ("batch", ...)' for name in list(batch)[:2])
        raise PlanError(BadAxes(span, f"the axes are {kind(axes)}", f"give a dictionary: {{{example}}}"))
    found: list[Diagnostic] = [
        BadAxes(
            span, f"axes are named for `{name}`, which is no input", "name the axes of the inputs", suggest(name, batch)
        )
        for name in axes
        if name not in batch
    ]
    sizes: dict[str, tuple[int, str]] = {}
    for name, tensor in batch.items():
        if name in axes:
            found += _wrong_axes(span, name, tensor, axes[name], sizes)
    if found:
        raise PlanError(*found)
    return axes_of(module, batch, {name: tuple(names) for name, names in axes.items()})


def _wrong_axes(
    span: Span | None, name: str, tensor: torch.Tensor, names: Any, sizes: dict[str, tuple[int, str]]
) -> Iterator[Diagnostic]:
    """Diagnostics for the names of one input's axes; `sizes` collects each name's size, and its first input."""
    if not isinstance(names, (tuple, list)) or not all(_is_word(n, name, i) for i, n in enumerate(names)):
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


def _is_word(word: Any, name: str, axis: int) -> bool:
    """Whether an axis may have this name: a word, or the automatic name of that axis."""
    return isinstance(word, str) and (word.isidentifier() or word == automatic(name, axis))


def _shape(tensor: torch.Tensor) -> str:
    return text(tensor.dtype, tuple(tensor.shape))


def axes_of(
    module: torch.nn.Module, batch: Mapping[str, torch.Tensor], known: Mapping[str, tuple[str, ...]] | None = None
) -> Axes:
    """A name for each axis of each input; `known` has the inputs whose axes are named already.

    >>> axes_of(torch.nn.Linear(4, 2), {"x": torch.ones(8, 4), "y": torch.ones(8, 2)})
    {'x': ('batch', 'x.1'), 'y': ('batch', 'y.1')}
    """
    known = dict(known or {})
    sizes = {axis: size for name, axes in known.items() for axis, size in zip(axes, batch[name].shape, strict=True)}
    conventions = CONVENTIONS | (OF_DECODERS if _has_decoder(module) else {})
    firsts = {t.shape[0] for t in batch.values() if t.dim()}  # sizes of first axes; if there is one, it is the batch's
    found: Axes = {}
    for name, tensor in batch.items():
        words = next((w for w in conventions.get(name, ()) if len(w) == tensor.dim()), ())
        if not words and tensor.dim() and len(firsts) == 1:
            words = ("batch",)
        found[name] = known[name] if name in known else tuple(_named(name, tensor, words, sizes))
    return found


def automatic(name: str, axis: int) -> str:
    """The name of an axis of unknown meaning."""
    return f"{name}.{axis}"


def _has_decoder(module: torch.nn.Module) -> bool:
    config: Any = getattr(module, "config", None)
    return bool(getattr(config, "is_encoder_decoder", False))


def _named(name: str, tensor: torch.Tensor, words: tuple[str, ...], sizes: dict[str, int]) -> Iterator[str]:
    """The names of an input's axes: `words`, or automatic ones. A name has one size: an axis of another size, as in
    `position_ids` of one row, has an automatic name."""
    for axis, size in enumerate(tensor.shape):
        word = words[axis] if axis < len(words) else ""
        yield word if word and sizes.setdefault(word, size) == size else automatic(name, axis)
