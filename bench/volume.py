"""The small CosmoFlow that contenders split in space: four convolutions and poolings over volumes of 4 x 64^3."""

from torch import Tensor

from bench.contenders import VOLUME
from ssdsl.model.load import load
from ssdsl.model.zoo.nets.cosmoflow import CosmoFlowNet

Batch = dict[str, Tensor]


def build_volume() -> tuple[CosmoFlowNet, tuple[Batch, ...]]:
    """The model and its batches, the same in every process."""
    model = load(VOLUME)
    assert isinstance(model.module, CosmoFlowNet)
    return model.module, model.batches
