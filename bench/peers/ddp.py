"""Data parallel by PyTorch's DistributedDataParallel, with its two options that help here, and buckets as ours."""

from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from transformers import GPT2LMHeadModel

from bench.peers.setup import Batch, Step, adamw, compiled, part_of, train

BUCKET_MB = 4  # five of them


def build(model: GPT2LMHeadModel, rank: int, ranks: int) -> Step:
    replica = DistributedDataParallel(model, bucket_cap_mb=BUCKET_MB, gradient_as_bucket_view=True, static_graph=True)
    optimizer = adamw(compiled(replica).parameters())

    def step(batch: Batch) -> Tensor:
        loss = replica(**part_of(batch, rank, ranks)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss / ranks

    return step


if __name__ == "__main__":
    train(build)
