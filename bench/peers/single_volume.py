"""One process, the untouched CosmoFlow: the losses that those who split it must reach."""

from torch import Tensor

from bench.peers.setup import Batch, Step, adamw, train
from bench.volume import build_volume
from ssdsl.model.zoo.nets.cosmoflow import CosmoFlowNet


def build(model: CosmoFlowNet, rank: int, ranks: int) -> Step:
    optimizer = adamw(model.parameters())

    def step(batch: Batch) -> Tensor:
        loss: Tensor = model(**batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


if __name__ == "__main__":
    train(build, build_volume)
