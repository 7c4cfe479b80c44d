"""Tensor parallel by DTensor's `parallelize_module`, with the same splits as the hand-written program.

Its styles know `nn.Linear` and `nn.Embedding` only, so the model is rewritten with those. Queries, keys and values stay
one linear, whose rows are reordered so that each rank's part has its own heads of all three: three linears would make
three all_reduces in backward.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module
from transformers import GPT2LMHeadModel

from bench.gpt import SIZE
from bench.peers.lean import Weights, attend, gelu, initial_weights
from bench.peers.setup import IGNORED, Batch, Step, adamw, compiled, shift, train


def build(model: GPT2LMHeadModel, rank: int, ranks: int) -> Step:
    gpt = GPT(initial_weights(model), ranks)
    parallelize(gpt, ranks)
    parameters = list(compiled(gpt).parameters())
    sharded = [p for p in parameters if isinstance(p, DTensor)]
    copied = [p for p in parameters if not isinstance(p, DTensor)]
    optimizer = adamw([{"params": sharded}, {"params": copied}])  # one fused call cannot mix the two

    def step(batch: Batch) -> Tensor:
        with loss_parallel():
            logits = gpt(batch["input_ids"])
            loss = F.cross_entropy(logits.flatten(0, 1), shift(batch["labels"]), ignore_index=IGNORED)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.full_tensor() / ranks  # every rank has all of it

    return step


def parallelize(model: nn.Module, ranks: int) -> None:
    mesh = init_device_mesh("cpu", (ranks,))
    plan = {
        "wte": RowwiseParallel(input_layouts=Replicate()),
        "h.*.attn_in": ColwiseParallel(),
        "h.*.attn_out": RowwiseParallel(),
        "h.*.mlp_in": ColwiseParallel(),
        "h.*.mlp_out": RowwiseParallel(),
        "head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
    }
    parallelize_module(model, mesh, plan)
    model.head.weight = model.wte.weight  # parallelize_module unties them


class Block(nn.Module):
    def __init__(self, ranks: int) -> None:
        super().__init__()
        self.heads = SIZE.heads // ranks
        self.ln_1, self.ln_2 = nn.LayerNorm(SIZE.hidden), nn.LayerNorm(SIZE.hidden)
        self.attn_in, self.attn_out = nn.Linear(SIZE.hidden, 3 * SIZE.hidden), nn.Linear(SIZE.hidden, SIZE.hidden)
        self.mlp_in, self.mlp_out = nn.Linear(SIZE.hidden, 4 * SIZE.hidden), nn.Linear(4 * SIZE.hidden, SIZE.hidden)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn_out(attend(self.attn_in(self.ln_1(x)), self.heads))
        return x + self.mlp_out(gelu(self.mlp_in(self.ln_2(x))))


class GPT(nn.Module):
    def __init__(self, weights: Weights, ranks: int) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(SIZE.vocab, SIZE.hidden), nn.Parameter(torch.empty(SIZE.seq, SIZE.hidden))
        self.h = nn.ModuleList(Block(ranks) for _ in range(SIZE.layers))
        self.ln_f = nn.LayerNorm(SIZE.hidden)
        self.head = nn.Linear(SIZE.hidden, SIZE.vocab, bias=False)
        self.head.weight = self.wte.weight
        self.load_state_dict(rename(weights, ranks))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.wte(ids) + self.wpe
        for block in self.h:
            x = block(x)
        return self.head(self.ln_f(x))


def rename(weights: Weights, ranks: int) -> Weights:
    """GPT-2's weights under the names, and in the layout, of `GPT`."""
    names = {"attn.c_attn": "attn_in", "attn.c_proj": "attn_out", "mlp.c_fc": "mlp_in", "mlp.c_proj": "mlp_out"}
    renamed = {"wpe": weights["wpe.weight"], "head.weight": weights["wte.weight"]}
    for name, weight in weights.items():
        if name == "wpe.weight":
            continue
        if "c_attn" in name:
            weight = weight.unflatten(-1, (3, ranks, -1)).transpose(-2, -3).flatten(-3)
        if weight.dim() == 2 and name.startswith("h."):
            weight = weight.T
        for old, new in names.items():
            name = name.replace(old, new)
        renamed[name] = weight
    return renamed


if __name__ == "__main__":
    train(build)
