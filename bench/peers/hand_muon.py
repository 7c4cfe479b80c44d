"""Data parallel with Muon by hand: gradients in one flat all_reduce; each matrix is stepped on by one rank, the largest
given out first, and all ranks gather what the others have updated."""

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import GPT2LMHeadModel

from bench.peers.hand_dp import flatten_gradients
from bench.peers.lean import LAST, build_stage
from bench.peers.setup import Batch, Step, adamw, part_of, shift, train
from bench.peers.single_muon import MUON, is_matrix


def build(model: GPT2LMHeadModel, rank: int, ranks: int) -> Step:
    whole = build_stage(model, 0, LAST)
    flat = flatten_gradients(whole.parameters())
    matrices = [w for n, w in whole.weights.items() if is_matrix(n, w)]
    owned = give_out(matrices, ranks)
    muon = torch.optim.Muon(owned[rank], **MUON)
    rest = adamw([w for n, w in whole.weights.items() if not is_matrix(n, w)])
    sizes = [[w.numel() for w in those] for those in owned]
    most = max(map(sum, sizes))
    mine, all_parts = torch.zeros(most), torch.zeros(ranks * most)

    def step(batch: Batch) -> Tensor:
        part = part_of(batch, rank, ranks)
        flat.zero_()
        loss = whole.loss(whole(part["input_ids"]), shift(part["labels"])) / ranks
        loss.backward()
        dist.all_reduce(flat)
        muon.step()
        with torch.no_grad():
            torch.cat([w.flatten() for w in owned[rank]], out=mine[: sum(sizes[rank])])
            gathering = dist.all_gather_into_tensor(all_parts, mine, async_op=True)
            rest.step()
            gathering.wait()
            for other, values in enumerate(all_parts.split(most)):
                if other != rank:
                    news = values[: sum(sizes[other])].split(sizes[other])
                    for w, new in zip(owned[other], news, strict=True):
                        w.copy_(new.view_as(w))
        return loss

    return step


def give_out(matrices: list[Tensor], ranks: int) -> list[list[Tensor]]:
    """The matrices of each rank, with about equal work: a step of Newton and Schulz multiplies three times."""
    owned: list[list[Tensor]] = [[] for _ in range(ranks)]
    work = [0] * ranks
    for matrix in sorted(matrices, key=lambda w: (-w.numel() * min(w.shape), w.data_ptr())):
        least = work.index(min(work))
        owned[least].append(matrix)
        work[least] += matrix.numel() * min(matrix.shape)
    return owned


if __name__ == "__main__":
    train(build)
