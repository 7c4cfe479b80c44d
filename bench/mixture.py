"""The small Mixtral whose experts contenders divide: four layers, 2 of 8 experts for each of 1024 tokens."""

from torch import Tensor
from transformers import MixtralForCausalLM

from bench.contenders import MIXTURE
from ssdsl.model.load import load

Batch = dict[str, Tensor]


def build_mixture() -> tuple[MixtralForCausalLM, tuple[Batch, ...]]:
    """The model and its batches, the same in every process."""
    model = load(MIXTURE)
    assert isinstance(model.module, MixtralForCausalLM)
    return model.module, model.batches
