"""Numbers that are not finite in what a step is given: its batch, weights, buffers and constants."""

from collections.abc import Collection, Iterable, Iterator, Mapping

import torch

from ..step.parts import LocalTensor
from ..step.rank_program import RankProgram
from .not_finite import WORDS, kind_of, where
from .origins import Given

Found = tuple[torch.Tensor, Given]


def in_batch(share: RankProgram, batch: Mapping[str, torch.Tensor]) -> Iterator[Found]:
    """The tensors of this rank's part of a batch that are not finite."""
    for name, piece in share.inputs.items():
        if name in batch and (kind := kind_of(batch[name])) is not None:
            axes = share.table.inputs[name].axes
            text = f"input `{name}` is {where(batch[name], kind, piece, axes=axes)}"
            yield batch[name], Given(text, kind, is_batch=True, is_trained=False)


def in_weights(held: Iterable[LocalTensor], trained: Collection[str]) -> Iterator[Found]:
    """This rank's parts of weights and buffers that are not finite; `trained` are the names of trained weights."""
    for one in held:
        if (kind := kind_of(one.tensor)) is not None:
            is_trained = one.name in trained
            what = "weight" if is_trained else "frozen weight or buffer"
            text = f"{what} `{one.name}` is {where(one.tensor, kind, one.piece, one.span)}"
            yield one.tensor, Given(text, kind, is_batch=False, is_trained=is_trained)


def in_constants(share: RankProgram) -> Iterator[Found]:
    """The constants of this rank's program that are not finite."""
    for name, x in (share.constants if share.role is not None else {}).items():
        if (kind := kind_of(x)) is not None:
            text = f"the constant `{name}` of the model is {WORDS[kind]}"
            yield x, Given(text, kind, is_batch=False, is_trained=False)
