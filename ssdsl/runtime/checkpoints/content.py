"""The content of a checkpoint: tensors under paths, of which each rank saves and loads its part, and facts that all
ranks share.

("model", "fc.weight")                        a weight or buffer, by the model's own name
("optim", "state", "fc.weight", "exp_avg")    the optimizer's state of a weight
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ..layout.parts import LocalTensor

Path = tuple[str, ...]
Scalar = bool | int | float | torch.Tensor  # a tensor without axes
MODEL, STATE = ("model",), ("optim", "state")


@dataclass(frozen=True)
class Content:
    """This rank's part of a checkpoint.

    `facts` are plain values (see plain.py); `aliases` map the further names of tied weights to the first. Rank 0 saves
    its own. Commands read these facts: `steps`; `names`, the names of the model's state in order; `optimizer`,
    `{"param_groups": [{"params": names of weights, "lr": ...}]}` as in an optimizer's state_dict.
    """

    tensors: dict[Path, LocalTensor]
    scalars: dict[Path, Scalar] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)


def content_of(
    weights: Iterable[LocalTensor],
    state: Mapping[str, Mapping[str, LocalTensor | Scalar | None]],
    facts: dict[str, Any],
    more: Mapping[Path, Iterable[LocalTensor]] | None = None,
    aliases: Mapping[str, str] | None = None,
) -> Content:
    """A checkpoint of this rank's weights and buffers, its optimizer state by weight and key, and `more` tensors under
    paths of their own.

    >>> w, m = (LocalTensor.whole("w", torch.zeros(2)) for _ in range(2))
    >>> found = content_of([w], {"w": {"exp_avg": m, "step": 3.0}}, {}, {("ema",): [w]})
    >>> list(found.tensors), found.scalars
    ([('model', 'w'), ('optim', 'state', 'w', 'exp_avg'), ('ema', 'w')], {('optim', 'state', 'w', 'step'): 3.0})
    """
    content = Content({(*MODEL, held.name): held for held in weights}, facts=facts, aliases=aliases or {})
    for name, values in state.items():
        for key, value in values.items():
            if isinstance(value, LocalTensor):
                content.tensors[*STATE, name, key] = value
            elif value is not None:
                content.scalars[*STATE, name, key] = value
    for path, tensors in (more or {}).items():
        content.tensors.update({(*path, held.name): held for held in tensors})
    return content
