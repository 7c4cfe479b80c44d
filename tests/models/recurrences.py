"""Loops over a sequence with a state: linear recurrences, which are scans, and others, which stay loops. Each layer
makes [batch, seq, hidden] of the same."""

import functools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BATCH, SEQ, HIDDEN, HEADS, CHUNK = 4, 8, 8, 2, 2
AXES = {"x": ("batch", "seq", "hidden")}


class Layer(nn.Module):
    """Projections to heads, and gates."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.gate, self.out = (nn.Linear(HIDDEN, HIDDEN) for _ in range(5))
        self.start = nn.Parameter(torch.rand(HIDDEN))
        self.conv = nn.Conv1d(HIDDEN, HIDDEN, 3, padding=2, groups=HIDDEN)

    def heads(self, x: Tensor) -> list[Tensor]:
        return [f(x).view(BATCH, SEQ, HEADS, -1) for f in (self.query, self.key, self.value)]

    def states(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.states(x)) - x


class ByStep(Layer):
    """Gated linear attention with a step for each position; the state is read after it."""

    def states(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        g = self.gate(x).sigmoid().view(BATCH, SEQ, HEADS, -1)
        state = x.new_zeros(BATCH, HEADS, HIDDEN // HEADS, HIDDEN // HEADS)
        rows = []
        for t in range(SEQ):
            state = state * g[:, t].unsqueeze(-1) + k[:, t].unsqueeze(-1) * v[:, t].unsqueeze(-2)
            rows.append(torch.einsum("bhd,bhde->bhe", q[:, t], state))
        return torch.stack(rows, 1).reshape(x.shape)


class ByChunk(Layer):
    """Retention by chunks with a constant decay; there is no state in the first one."""

    def states(self, x: Tensor) -> Tensor:
        q, k, v = (part.transpose(1, 2) for part in self.heads(x))
        decay = torch.linspace(0.5, 0.9, HEADS).view(-1, 1, 1)
        state, rows = None, []
        for a, b, c in zip(*(part.split(CHUNK, 2) for part in (q, k, v)), strict=True):
            row = (a @ b.mT).tril() @ c
            rows.append(row if state is None else row + a @ state * decay)
            state = b.mT @ c if state is None else decay * state + b.mT @ c
        return torch.cat(rows, 2).transpose(1, 2).reshape(x.shape)


class Selective(Layer):
    """A selective state space behind a causal convolution, with a learned first state; results are written in place."""

    def states(self, x: Tensor) -> Tensor:
        u = F.silu(self.conv(x.mT)[..., :SEQ]).mT
        decay, key, result = torch.exp(-F.softplus(self.gate(u))), self.key(u), torch.empty_like(x)
        state = self.start.expand(BATCH, HIDDEN)
        for t in range(SEQ):
            state = decay[:, t] * state + (1 - decay[:, t]) * self.value(u[:, t])
            result[:, t] = state * key[:, t]
        return result


class Kept(Layer):
    """The number 0 as the first state, masked steps, the state before and after each step, and the last one."""

    def states(self, x: Tensor) -> Tensor:
        gate, values, are_shown, state, rows = self.gate(x).sigmoid(), self.value(x), x[..., :1] > -0.5, 0, []
        for t in range(SEQ):
            before = torch.lerp(values[:, t], state * gate[:, t], 0.5)
            rows.append(before * gate[:, t])
            state = torch.where(are_shown[:, t], before, state * gate[:, t])
            rows[-1] = rows[-1] + state
        return torch.stack(rows, 1) + state.unsqueeze(1)  # type: ignore[union-attr]


class Nonlinear(Layer):
    def states(self, x: Tensor) -> Tensor:
        values, state, rows = self.value(x), torch.zeros(BATCH, HIDDEN), []
        for t in range(SEQ):
            state = torch.tanh(0.5 * state + values[:, t])
            rows.append(state)
        return torch.stack(rows, 1)


class DeltaRule(Layer):
    """What the state has at a key is replaced: each element of a state depends on others."""

    def states(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        state, rows = x.new_zeros(BATCH, HEADS, HIDDEN // HEADS, HIDDEN // HEADS), []
        for t in range(SEQ):
            there = torch.einsum("bhd,bhde->bhe", k[:, t], state)
            state = state + torch.einsum("bhd,bhe->bhde", k[:, t], v[:, t] - there) / 4
            rows.append(torch.einsum("bhd,bhde->bhe", q[:, t], state))
        return torch.stack(rows, 1).reshape(x.shape)


class ReadBetween(Layer):
    """A state in the middle of the sequence is read elsewhere."""

    def states(self, x: Tensor) -> Tensor:
        values, state, rows = self.value(x), torch.zeros(BATCH, HIDDEN), []
        for t in range(SEQ):
            state = 0.5 * state + values[:, t]
            rows.append(state)
        return torch.stack(rows, 1) * rows[3].unsqueeze(1)


class Reset(Layer):
    """Some steps forget the state."""

    def states(self, x: Tensor) -> Tensor:
        values, state, rows = self.value(x), torch.zeros(BATCH, HIDDEN), []
        for t in range(SEQ):
            state = 0.5 * state + values[:, t] if t % 4 else values[:, t]
            rows.append(state)
        return torch.stack(rows, 1)


class Shorter(Layer):
    """The last chunk is shorter than the others."""

    def states(self, x: Tensor) -> Tensor:
        state, rows = torch.zeros(BATCH, 1, HIDDEN), []
        for part in self.value(x).split(3, 1):
            rows.append(part + state)
            state = 0.5 * state + part.sum(1, keepdim=True)
        return torch.cat(rows, 1)


SCANS = (ByStep, ByChunk, Selective, Kept)
LOOPS = (Nonlinear, DeltaRule, ReadBetween, Reset, Shorter)


class Net(nn.Module):
    def __init__(self, layer: type[Layer]) -> None:
        super().__init__()
        self.layer = layer()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).square().mean()


def net(layer: type[Layer]) -> tuple[nn.Module, dict[str, Tensor], dict[str, tuple[str, ...]]]:
    return Net(layer), {"x": torch.randn(BATCH, SEQ, HIDDEN)}, AXES


for _layer in (*SCANS, *LOOPS):
    globals()[f"net_{_layer.__name__}"] = functools.partial(net, _layer)
