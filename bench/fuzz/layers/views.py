"""Changes in place of views, and operators that ask how a tensor lies in memory."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Changed(nn.Module):
    """Activations of which a part is changed in place: of a merged view, a slice, a transposed view, by a mask."""

    def __init__(self, hidden: int, kind: str) -> None:
        super().__init__()
        self.lin, self.kind = nn.Linear(hidden, hidden), kind

    def forward(self, x: Tensor) -> Tensor:
        y = self.lin(x).clone()
        b, s, h = x.shape
        match self.kind:
            case "merged":
                y.view(b, -1)[:, 3 : s * h - 1] += 1
            case "merged batch":
                y.view(b * s, h)[1 : s + 1] *= 0.5
            case "everything":
                y.view(-1)[2 : s * h + 2] -= x.flatten()[: s * h].tanh()
            case "heads":
                y.view(b, s, 2, -1)[:, :, 1].mul_(2)
            case "pairs":
                y.view(b, s, -1, 2)[..., 0] += y.view(b, s, -1, 2)[..., 1]
            case "first":
                y[:, 0] = 0
            case "last sample":
                y[-1] = x[0]
            case "transposed":
                y.transpose(1, 2)[:, 1:].add_(0.5)
            case "masked":
                y.masked_fill_(x > 0.3, 0.1)
            case "chosen":
                y[x < 0] = 0.25
            case "index":
                y[:, torch.tensor([0, s - 1])] = x[:, :1]
            case "added":
                y.index_add_(1, torch.tensor([0, 0, 1]), x[:, [0, 1, 1]])
            case "diagonal":
                y.diagonal(0, 1, 2).fill_(1.0)
            case "copied":
                y[..., : h // 2].copy_(x[..., h // 2 :])
            case "unfolded":
                y.unflatten(1, (-1, 1)).squeeze(2)[:, 1:].sub_(x[:, :-1])
            case "twice":
                y[:, 1:].mul_(2)
                y.view(b, -1)[:, 1:h] += 1
                y[:, 0] = 0
            case "shared":  # what was read before it changed
                z = y.view(b, -1)
                first = z[:, :h].clone()
                z[:, :h] = z[:, -h:]
                y = y + first.unsqueeze(1)
            case _:
                y.mul_(2).add_(x).relu_()
        return x + y


class Strided(nn.Module):
    """Complex numbers as pairs, Fourier transforms, sliding windows, tensors by their strides."""

    def __init__(self, hidden: int, kind: str) -> None:
        super().__init__()
        self.lin, self.kind = nn.Linear(hidden, hidden), kind

    def forward(self, x: Tensor) -> Tensor:
        y = self.lin(x)
        b, s, h = x.shape
        match self.kind:
            case "rotary":
                z = torch.view_as_complex(y.unflatten(-1, (-1, 2)).contiguous())
                angle = torch.arange(s, dtype=y.dtype)[:, None] / 10 ** torch.arange(h // 2, dtype=y.dtype)
                return x + torch.view_as_real(z * torch.polar(torch.ones_like(angle), angle)).flatten(-2)
            case "rotary heads":
                z = torch.view_as_complex(y.view(b, s, 2, -1, 2))
                return x + torch.view_as_real(z * (0.6 + 0.8j)).flatten(2)
            case "complex":
                z = torch.complex(y, x)
                return (z * z.conj()).real + z.abs() + z.angle()
            case "halves":
                z = torch.view_as_complex(torch.stack(y.chunk(2, -1), -1))
                return x + torch.cat([z.real, (z * 1j).real], -1)
            case "fourier":
                return x + torch.fft.irfft(torch.fft.rfft(y, dim=1) * 0.5, n=s, dim=1)
            case "fourier hidden":
                return x + torch.fft.fft(y, dim=2).abs()
            case "fourier both":
                return x + torch.fft.ifft2(torch.fft.fft2(y) * 2).real
            case "short fourier":
                window = torch.hann_window(4, dtype=y.dtype)
                z = torch.stft(y.mT.flatten(0, 1), 4, 2, window=window, return_complex=True)
                return x * (1 + z.abs().mean((1, 2)).view(b, 1, h))
            case "strides":
                return x + y.contiguous().as_strided((b, s, h), (s * h, h, 1), 0)
            case "windows":
                return x + y.contiguous().as_strided((b, s, h), (s * h, h - 1, 1), 0)
            case "unfold":
                return x + F.pad(y.unfold(1, 2, 1).mean(-1), (0, 0, 0, 1))
            case "unfold hidden":
                return x + y.unfold(2, 2, 2).amax(-1).repeat(1, 1, 2)
            case "blocks":
                z = F.unfold(y.unsqueeze(1), 2, stride=1)
                return x + F.fold(z * 0.5, (s, h), 2).squeeze(1)
            case "every second":
                return x + y[:, :, ::2].repeat_interleave(2, -1) + F.pad(y[:, ::2], (0, 0, 0, s // 2))
            case "expanded":
                return x + y[:, :1].expand(-1, s, -1) * y[:, :, :1].expand_as(y)
            case _:
                return x + torch.view_as_real(torch.polar(y.abs() + 0.1, x)).sum(-1)
