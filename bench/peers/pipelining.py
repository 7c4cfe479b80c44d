"""What the pipelines of torch.distributed.pipelining share: the stages of a rank, and the step of a schedule.

The library copies a tied embedding into both ends of the pipeline and leaves its gradients apart. If the two ends are
on two ranks, they are added here.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from transformers import GPT2LMHeadModel

from bench.gpt import SIZE
from bench.peers.setup import IGNORED, Batch, Step, adamw, shift

MICRO_BATCHES = 4
Make = Callable[[list[PipelineStage]], Any]


def pipeline(model: GPT2LMHeadModel, mine: Sequence[int], stages: int, make: Make) -> Step:
    """The step of a rank that has the stages `mine` of so many, in a schedule that `make` makes of them."""
    modules = {s: Layers(model, s, stages) for s in mine}
    schedule = make([PipelineStage(module, s, stages, torch.device("cpu")) for s, module in modules.items()])
    optimizer = adamw(dict.fromkeys(p for module in modules.values() for p in module.parameters()))
    tied, has_first, has_last = model.transformer.wte.weight, 0 in mine, stages - 1 in mine

    def step(batch: Batch) -> Tensor:
        losses: list[Tensor] = []
        asked = {"target": batch["labels"], "losses": losses, "return_outputs": False} if has_last else {}
        schedule.step(*([batch["input_ids"]] if has_first else []), **asked)
        if has_first != has_last:
            dist.all_reduce(tied.grad)
        optimizer.step()
        optimizer.zero_grad()
        return torch.stack(losses).mean() if losses else torch.zeros(())

    return step


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), shift(labels), ignore_index=IGNORED)


class Layers(nn.Module):
    """One of equal stages of the model's layers, with the embedding before the first and the head after the last."""

    def __init__(self, model: GPT2LMHeadModel, stage: int, stages: int) -> None:
        super().__init__()
        whole, count = model.transformer, SIZE.layers // stages
        self.h = whole.h[stage * count : (stage + 1) * count]
        self.wte, self.wpe = (whole.wte, whole.wpe) if stage == 0 else (None, None)
        self.ln_f, self.head = (whole.ln_f, model.lm_head) if stage == stages - 1 else (None, None)

    def forward(self, x: Tensor) -> Tensor:
        if self.wte is not None:
            x = self.wte(x) + self.wpe(torch.arange(SIZE.seq))
        for block in self.h:
            x = block(x)
        return x if self.head is None else self.head(self.ln_f(x))
