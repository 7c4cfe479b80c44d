"""Models whose operators depend on memory: on strides, on changes in place, on what nothing reads any more."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

import ssdsl
from tests.models.row_major import row_major

OPS = [ssdsl.Op("ssdsl_test_memory::row_major", "... -> ...", module="tests.models.row_major")]
Given = tuple[nn.Module, dict[str, torch.Tensor], dict[str, tuple[str, ...]]]
Middle = Callable[["Between", torch.Tensor], torch.Tensor]
BATCH, SEQ, HIDDEN = 4, 6, 8


class Between(nn.Module):
    """What is tried stands between two linear layers: `up.weight.0` of 8, which may be two dimensions."""

    def __init__(self, middle: Middle, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.up, self.down, self.middle = nn.Linear(3, HIDDEN), nn.Linear(HIDDEN, 2), middle
        self.inner = nn.Identity() if inner is None else inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.middle(self, self.up(x))).square().mean()


def _given(middle: Middle, inner: Callable[[], nn.Module] | None = None) -> Given:
    torch.manual_seed(0)
    net = Between(middle, None if inner is None else inner())
    return net, {"x": torch.randn(BATCH, SEQ, 3)}, {"x": ("batch", "seq", "feature")}


def pairs() -> Given:
    """Llama's own rotary embedding: neighbours are a pair."""
    return _given(lambda _, y: _turned(y.unflatten(-1, (-1, 2)).contiguous()).flatten(-2))


def halves() -> Given:
    """The halves of a head are a pair, so the model makes them neighbours."""
    return _given(lambda _, y: _turned(y.unflatten(-1, (2, -1)).mT.contiguous()).mT.flatten(-2))


def _turned(y: torch.Tensor) -> torch.Tensor:
    angle = torch.arange(SEQ)[:, None] * torch.arange(HIDDEN / 2)
    return torch.view_as_real(torch.view_as_complex(y) * torch.polar(torch.ones_like(angle), angle))


def written() -> Given:
    """Complex numbers are written into a part of others, as real ones in pairs."""

    def middle(_: Between, y: torch.Tensor) -> torch.Tensor:
        numbers = torch.view_as_complex(y.unflatten(-1, (-1, 2)).contiguous())
        changed = torch.zeros_like(numbers)
        changed[:, 1:3] = numbers[:, 2:4] * 1j
        return torch.view_as_real(numbers + changed).flatten(-2)

    return _given(middle)


def own() -> Given:
    return _given(lambda _, y: row_major(y.mT.contiguous()).mT + row_major(y))


def bits() -> Given:
    """The parity of each number's last bits."""
    return _given(lambda _, y: y * (y.detach().view(torch.int16).sum(-1, keepdim=True) % 2))


def windows() -> Given:
    """Strides chosen by hand, of a tensor and of a view that looks into one."""

    def middle(_: Between, y: torch.Tensor) -> torch.Tensor:
        around = y[:, 1:].as_strided((BATCH, SEQ, HIDDEN), (SEQ * HIDDEN, HIDDEN, 1), 0)
        return y.mT.contiguous().as_strided(y.shape, (SEQ * HIDDEN, 1, SEQ)) + around.mean()

    return _given(middle)


def merged() -> Given:
    """A run of positions and features is changed in place."""

    def middle(_: Between, y: torch.Tensor) -> torch.Tensor:
        y = y.clone()
        y[:, 1:].mul_(2)
        y.view(BATCH, -1)[:, 3:9] += 1
        return y

    return _given(middle)


def dead() -> Given:
    """Views without gradients, and branches that nothing reads."""

    def middle(_: Between, y: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            flat = y.view(BATCH, -1)
            largest, _places = flat[:, 3:9].max(1)
            same = flat.view_as(y)
        F.dropout(y, 0.5)
        return y * largest[:, None, None] + same

    return _given(middle)


def spectral() -> Given:
    """A weight over its largest singular value, of power iterations."""
    return _given(
        lambda net, y: net.inner(y), lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(HIDDEN, HIDDEN))
    )


def addends() -> Given:
    """The addend of a product has the gradient of the result itself, which must not be overwritten."""

    def middle(net: Between, y: torch.Tensor) -> torch.Tensor:
        weight = net.inner.weight.expand(BATCH, -1, -1)
        return torch.baddbmm(torch.baddbmm(y, y, weight), y.tanh(), weight)

    return _given(middle, lambda: nn.Linear(HIDDEN, HIDDEN, bias=False))
