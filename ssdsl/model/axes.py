"""Names for the axes of a batch that nobody has named: by convention, or else by their place.

Inputs of `transformers` models have names that say what their axes are. Where all inputs of a batch have a first axis
of one size, it is `batch`. Any other axis is called by its input, as `x.1`, unless an operator of the model knows a
better word for it.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch

Axes = dict[str, tuple[str, ...]]

TOKENS = ("batch", "seq")
TARGETS = ("batch", "target")
CONVENTIONS: dict[str, tuple[tuple[str, ...], ...]] = {  # by the name of an input, one for each number of axes
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
OF_DECODERS = {  # of a model with an encoder and a decoder; `labels` are the decoder's as well
    "decoder_input_ids": (TARGETS,),
    "decoder_attention_mask": (TARGETS,),
    "decoder_inputs_embeds": ((*TARGETS, "hidden"),),
    "labels": (("batch",), TARGETS),
}


def axes_of(
    module: torch.nn.Module, batch: Mapping[str, torch.Tensor], known: Mapping[str, tuple[str, ...]] | None = None
) -> Axes:
    """A name for each axis of each input; `known` are those that are named already.

    >>> axes_of(torch.nn.Linear(4, 2), {"x": torch.ones(8, 4), "y": torch.ones(8, 2)})
    {'x': ('batch', 'x.1'), 'y': ('batch', 'y.1')}
    """
    known = dict(known or {})
    sizes = {axis: size for name, axes in known.items() for axis, size in zip(axes, batch[name].shape, strict=True)}
    conventions = CONVENTIONS | (OF_DECODERS if _has_decoder(module) else {})
    firsts = {t.shape[0] for t in batch.values() if t.dim()}
    found: Axes = {}
    for name, tensor in batch.items():
        words = next((w for w in conventions.get(name, ()) if len(w) == tensor.dim()), ())
        if not words and tensor.dim() and len(firsts) == 1:
            words = ("batch",)
        found[name] = known[name] if name in known else tuple(_named(name, tensor, words, sizes))
    return found


def automatic(name: str, axis: int) -> str:
    """What an axis is called whose meaning nobody knows."""
    return f"{name}.{axis}"


def _has_decoder(module: torch.nn.Module) -> bool:
    config: Any = getattr(module, "config", None)
    return bool(getattr(config, "is_encoder_decoder", False))


def _named(name: str, tensor: torch.Tensor, words: tuple[str, ...], sizes: dict[str, int]) -> Iterator[str]:
    """A name has one size: where it has another, as in `position_ids` of one row, the axis is called by its place."""
    for axis, size in enumerate(tensor.shape):
        word = words[axis] if axis < len(words) else ""
        yield word if word and sizes.setdefault(word, size) == size else automatic(name, axis)
