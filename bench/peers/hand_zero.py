"""ZeRO by hand (arXiv 1910.02054), its second and its third stage.

The weights of a layer are views of one flat tensor, of which each rank trains a part, the shard; so are those of both
ends of the model, since the embedding's table is also the head's. Backward runs layer by layer: a reduce_scatter sums a
layer's gradients into the shards during the backward of the layer before. In stage 2 all weights are gathered after the
update. In stage 3 the weights of a layer are gathered for its forward and for its backward, during those of the layer
that runs before, and freed behind them.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from transformers import GPT2LMHeadModel

from bench.gpt import SIZE
from bench.peers.hand_dp import flatten_gradients
from bench.peers.lean import Weights, attention, feed_forward, initial_weights, norm
from bench.peers.setup import IGNORED, Batch, Step, adamw, part_of, shift


class Flat:
    """Some weights as views of `whole`, [elements], which is padded to a multiple of the ranks."""

    def __init__(self, weights: Weights, rank: int, ranks: int) -> None:
        sizes = [w.numel() for w in weights.values()]
        self.whole = F.pad(torch.cat([w.flatten() for w in weights.values()]), (0, -sum(sizes) % ranks))
        views = self.whole.data[: sum(sizes)].split(sizes)  # autograd does not see that gathers write to them
        named = zip(weights.items(), views, strict=True)
        self.weights = {name: view.view_as(w).requires_grad_() for (name, w), view in named}
        self.shard = self.whole.chunk(ranks)[rank].clone().requires_grad_()
        self.bytes = self.whole.nbytes

    def start_gather(self) -> None:
        self.whole.untyped_storage().resize_(self.bytes)
        self.gathering = dist.all_gather_into_tensor(self.whole, self.shard.detach(), async_op=True)

    def free(self) -> None:
        """Free the weights; what autograd has saved of them is there again after the next gather."""
        self.whole.untyped_storage().resize_(0)

    def prepare_gradients(self) -> None:
        """Let backward add gradients to views of one tensor."""
        self.gradients = flatten_gradients([*self.weights.values()], len(self.whole))

    def start_scatter(self) -> None:
        """Start to sum the gradients of all ranks, each into the shard's of its rank."""
        self.shard.grad = torch.empty_like(self.shard)
        self.scattering = dist.reduce_scatter_tensor(self.shard.grad, self.gradients, async_op=True)

    def finish_scatter(self) -> None:
        self.scattering.wait()
        del self.gradients
        for weight in self.weights.values():
            weight.grad = None


def zero(model: GPT2LMHeadModel, rank: int, ranks: int, stage: int) -> Step:
    weights = initial_weights(model)
    ends = Flat({n: w for n, w in weights.items() if not n.startswith("h.")}, rank, ranks)
    layers = [
        Flat({n: w for n, w in weights.items() if n.startswith(f"h.{k}.")}, rank, ranks) for k in range(SIZE.layers)
    ]
    flats = [ends, *layers]
    optimizer = adamw([flat.shard for flat in flats])
    for flat in flats if stage == 3 else ():
        flat.free()

    def step(batch: Batch) -> Tensor:
        loss = forward_and_backward(part_of(batch, rank, ranks), ends, layers, ranks, gathers=stage == 3)
        optimizer.step()
        if stage == 2:
            for flat in flats:
                flat.start_gather()
            for flat in flats:
                flat.gathering.wait()
        return loss

    return step


def forward_and_backward(part: Batch, ends: Flat, layers: list[Flat], ranks: int, gathers: bool) -> Tensor:
    """The loss of a rank's part of the batch; leaves the gradients of the shards. `gathers`: weights are not there."""
    count = len(layers)

    def enter(flat: Flat, following: Flat | None) -> None:
        if gathers:
            flat.gathering.wait()
            if following is not None:
                following.start_gather()

    if gathers:
        ends.start_gather()
    enter(ends, layers[0])
    outputs = [F.embedding(part["input_ids"], ends.weights["wte.weight"]) + ends.weights["wpe.weight"]]
    inputs = []
    for k, flat in enumerate(layers):
        is_last = k == count - 1
        enter(flat, None if is_last else layers[k + 1])
        inputs.append(outputs[-1].detach().requires_grad_())
        wide = attention(inputs[-1], flat.weights, f"h.{k}.", SIZE.heads)
        outputs.append(feed_forward(wide, flat.weights, f"h.{k}."))
        if gathers and not is_last:  # backward begins with the last
            flat.free()
    inputs.append(outputs[-1].detach().requires_grad_())
    scores = F.linear(norm(inputs[-1], ends.weights, "ln_f"), ends.weights["wte.weight"])
    loss = F.cross_entropy(scores.flatten(0, 1), shift(part["labels"]), ignore_index=IGNORED) / ranks

    ends.prepare_gradients()
    loss.backward()
    if gathers:
        layers[-2].start_gather()
    for k in reversed(range(count)):
        flat = layers[k]
        if k < count - 1:
            enter(flat, layers[k - 1] if k > 0 else None)
        flat.prepare_gradients()
        outputs.pop().backward(inputs.pop().grad)
        if gathers:
            flat.free()
        flat.start_scatter()
        if k < count - 1:
            layers[k + 1].finish_scatter()
    outputs.pop().backward(inputs.pop().grad)
    if gathers:
        ends.free()
    ends.start_scatter()
    layers[0].finish_scatter()
    ends.finish_scatter()
    return loss
