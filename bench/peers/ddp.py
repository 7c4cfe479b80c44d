"""Data parallel by PyTorch's DistributedDataParallel, with its two options that help here, and buckets as ours."""

from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from transformers import GPT2LMHeadModel

from bench.peers.setup import Batch, Step, adamw, compiled, part_of, read_arguments, train

BUCKET_MB = 4  # five of them


def build(model: GPT2LMHeadModel, rank: int, ranks: int) -> Step:
    args = read_arguments()
    helping = {"bucket_cap_mb": args.bucket_mb or BUCKET_MB, "gradient_as_bucket_view": True, "static_graph": True}
    replica = DistributedDataParallel(model, **({} if args.defaults else helping))
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
