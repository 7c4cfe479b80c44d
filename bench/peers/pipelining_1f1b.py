"""A pipeline of two stages by torch.distributed.pipelining's Schedule1F1B, with four micro-batches.

The library copies a tied embedding into both stages and leaves its gradients apart: they are added here.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from transformers import GPT2LMHeadModel

from bench.gpt import SIZE
from bench.peers.setup import IGNORED, Batch, Step, adamw, shift, train

MICRO_BATCHES = 4


def build(model: GPT2LMHeadModel, rank: int, ranks: int) -> Step:
    assert ranks == 2, "this program has two stages"
    module = FirstStage(model) if rank == 0 else LastStage(model)
    tied = model.transformer.wte.weight
    optimizer = adamw(module.parameters())
    stage = PipelineStage(module, rank, ranks, torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=cross_entropy)

    def step(batch: Batch) -> Tensor:
        losses: list[Tensor] = []
        if rank == 0:
            schedule.step(batch["input_ids"])
        else:
            schedule.step(target=batch["labels"], losses=losses, return_outputs=False)
        dist.all_reduce(tied.grad)
        optimizer.step()
        optimizer.zero_grad()
        return torch.stack(losses).mean() if losses else torch.zeros(())

    return step


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), shift(labels), ignore_index=IGNORED)


class FirstStage(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.wte, self.wpe = model.transformer.wte, model.transformer.wpe
        self.h = model.transformer.h[: SIZE.layers // 2]

    def forward(self, ids: Tensor) -> Tensor:
        x = self.wte(ids) + self.wpe(torch.arange(SIZE.seq))
        for block in self.h:
            x = block(x)
        return x


class LastStage(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.h = model.transformer.h[SIZE.layers // 2 :]
        self.ln_f, self.head = model.transformer.ln_f, model.lm_head

    def forward(self, x: Tensor) -> Tensor:
        for block in self.h:
            x = block(x)
        return self.head(self.ln_f(x))


if __name__ == "__main__":
    train(build)
