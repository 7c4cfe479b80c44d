"""Layers that compute on tokens: running sums, masks of documents, positions, embeddings with options."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Documents(nn.Module):
    """Attention within documents, which a token 0 begins or ends, or within what padding leaves of a sequence."""

    reads = True

    def __init__(self, hidden: int, kind: str, is_causal: bool, is_fused: bool) -> None:
        super().__init__()
        self.kind, self.is_causal, self.is_fused = kind, is_causal, is_fused
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        ends = ids == 0
        match self.kind:
            case "starts":
                document = ends.cumsum(1)
            case "ends":
                document = ends.cumsum(1) - ends.long()
            case "largest":
                document = torch.where(ends, torch.arange(x.shape[1], device=x.device), 0).cummax(1).values
            case "lengths":
                document = (torch.arange(x.shape[1], device=x.device) < (ids > 1).sum(1, keepdim=True)).long()
            case _:
                document = ids.clamp(max=1)
        mask = document[:, :, None] == document[:, None, :]
        if self.is_causal:
            mask = mask & torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
        q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        if self.is_fused:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask.unsqueeze(1))
        else:
            y = (q @ k.mT).masked_fill(~mask.unsqueeze(1), torch.finfo(x.dtype).min).softmax(-1) @ v
        return x + self.out(y.transpose(1, 2).flatten(2))


class Positions(nn.Module):
    """Positions that follow from tokens: within a document, or of what is no padding; looked up or as angles."""

    reads = True

    def __init__(self, hidden: int, seq: int, kind: str) -> None:
        super().__init__()
        self.kind, self.table = kind, nn.Embedding(seq + 1, hidden)

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        kept = (ids != 1).long()
        match self.kind:
            case "within":
                places = places - torch.where(ids == 0, places, 0).cummax(1).values
            case "padded":
                places = kept.cumsum(1) * kept
            case "left":
                places = (kept.cumsum(1) - 1).clamp(min=0)
            case "backwards":
                places = kept.flip(1).cumsum(1).flip(1)
            case "angles":
                angle = kept.cumsum(1).unsqueeze(-1) / 3 ** torch.arange(x.shape[2] // 2, device=x.device)
                a, b = x.chunk(2, -1)
                return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1).to(x.dtype)
            case _:
                places = places.expand_as(ids)
        return x + self.table(places)


class Counted(nn.Module):
    """Activations by numbers that tokens give: weights of a mean, places in an order, counts, the next token."""

    reads = True

    def __init__(self, vocab: int, kind: str) -> None:
        super().__init__()
        self.vocab, self.kind = vocab, kind

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        kept = (ids > 1).to(x.dtype)
        match self.kind:
            case "mean":
                return x + ((x * kept.unsqueeze(-1)).sum(1) / kept.sum(1, keepdim=True).clamp(min=1)).unsqueeze(1)
            case "mean of all":
                return x + (x * kept.unsqueeze(-1)).sum((0, 1)) / kept.sum().clamp(min=1)
            case "share":
                return x * (kept.cumsum(1) / (1 + kept.sum(1, keepdim=True))).unsqueeze(-1)
            case "order":
                return x + x.gather(1, ids.argsort(dim=1, stable=True).unsqueeze(-1).expand_as(x))
            case "counts":
                return x * F.one_hot(ids, self.vocab).sum(1, keepdim=True).to(x.dtype).mean(-1, keepdim=True)
            case "how often":
                return x * F.one_hot(ids, self.vocab).cumsum(1).gather(2, ids.unsqueeze(-1)).to(x.dtype)
            case "last":
                return x + x[torch.arange(len(x)), (ids > 1).sum(1) - 1].unsqueeze(1)
            case "largest":
                return x * (ids.cummax(1).values - ids.cummin(1).values).unsqueeze(-1).to(x.dtype) / self.vocab
            case "next":
                return x * (ids == ids.roll(-1, 1)).unsqueeze(-1) + x
            case "product":
                return x * (ids != 0).long().cumprod(1).unsqueeze(-1) + 0.5 * x
            case _:
                return x + x * (ids.cumsum(1) % 5).unsqueeze(-1) / 5


class Looked(nn.Module):
    """A second embedding of the tokens, with the options that it has."""

    reads = True

    def __init__(self, hidden: int, vocab: int, kind: str) -> None:
        super().__init__()
        options = {
            "sparse": {"sparse": True},
            "padded": {"padding_idx": 1},
            "by frequency": {"scale_grad_by_freq": True},
        }
        self.vocab, self.kind, self.table = vocab, kind, nn.Embedding(vocab, hidden, **options.get(kind, {}))

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        match self.kind:
            case "pairs":
                ids = (ids * 7 + ids.roll(1, 1) * 3) % self.vocab
            case "by hand":
                return x + self.table.weight[ids]
            case "product":
                return x + F.one_hot(ids, self.vocab).to(x.dtype) @ self.table.weight
        return x + self.table(ids)


class Bag(nn.Module):
    """Bags of tokens, one for each sample or for each pair of tokens."""

    reads = True

    def __init__(self, hidden: int, vocab: int, mode: str, kind: str) -> None:
        super().__init__()
        options = {
            "sparse": {"sparse": True},
            "padded": {"padding_idx": 1},
            "by frequency": {"scale_grad_by_freq": True},
        }
        self.kind, self.bag = kind, nn.EmbeddingBag(vocab, hidden, mode=mode, **options.get(kind, {}))

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        match self.kind:
            case "weighted":
                return x + self.bag(ids, per_sample_weights=x.mean(-1)).unsqueeze(1)
            case "pairs":
                pairs = torch.stack([ids, ids.roll(1, 1)], -1).flatten(0, 1)
                return x + self.bag(pairs).view_as(x)
            case "offsets":
                starts = torch.arange(0, ids.numel(), ids.shape[1], device=x.device)
                return x + self.bag(ids.flatten(), starts).unsqueeze(1)
        return x + self.bag(ids).unsqueeze(1)
