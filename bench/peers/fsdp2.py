"""ZeRO-3 by FSDP2's `fully_shard`: each layer is a unit that is gathered before use and freed after it."""

from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import GPT2LMHeadModel

from bench.peers.setup import Batch, Step, adamw, compiled, part_of, train


def build(model: GPT2LMHeadModel, rank: int, ranks: int) -> Step:
    mesh = init_device_mesh("cpu", (ranks,))
    for block in model.transformer.h:
        fully_shard(compiled(block), mesh=mesh, reshard_after_forward=True)
    fully_shard(model, mesh=mesh, reshard_after_forward=True)
    optimizer = adamw(model.parameters())

    def step(batch: Batch) -> Tensor:
        loss = model(**part_of(batch, rank, ranks)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss / ranks

    return step


if __name__ == "__main__":
    train(build)
