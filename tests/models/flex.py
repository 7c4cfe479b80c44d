"""Models with flex attention: masks of blocks, functions of scores, groups of heads, and results beside the output."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.flex_attention import AuxRequest, and_masks, create_block_mask, flex_attention, or_masks

BATCH, SEQ, HEADS, WIDTH = 4, 8, 4, 16
compiled = torch.compile(flex_attention)


def blocks(mask, batch=None):
    return create_block_mask(mask, batch, None, SEQ, SEQ, device="cpu")


def causal(b, h, i, j):
    return i >= j


def near(b, h, i, j):
    return i - j < 3


def earlier(b, h, i, j):
    return i > j


def falling(score, b, h, i, j):
    return score + (j - i) * torch.exp2(-(h + 1) * 8.0 / HEADS)


def capped(score, b, h, i, j):
    return 3 * torch.tanh(score / 3)


class Net(nn.Module):
    def __init__(self, attend, kv=HEADS):
        super().__init__()
        self.attend, self.width = attend, WIDTH // HEADS
        self.embed, self.o, self.head = nn.Embedding(16, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 16)
        self.q, self.k, self.v = (nn.Linear(WIDTH, n * self.width) for n in (HEADS, kv, kv))
        self.table = nn.Parameter(torch.randn(HEADS, 2 * SEQ) / 4)
        self.register_buffer("prefix", torch.tensor([3, 5, 0, 7]))
        self.register_buffer("bounds", torch.tensor([[0, 0], [0, 2], [1, 1], [0, 5]]))
        self.held = blocks(and_masks(causal, near))

    def forward(self, ids, document, labels):
        x = self.embed(ids)
        heads = [m(x).unflatten(-1, (-1, self.width)).transpose(1, 2) for m in (self.q, self.k, self.v)]
        y = self.attend(self, *heads, document).transpose(1, 2).flatten(2)
        return F.cross_entropy(self.head(x + self.o(y)).flatten(0, 1), labels.flatten())


def model(attend, **options):
    torch.manual_seed(0)
    ids, labels = torch.randint(16, (BATCH, SEQ)), torch.randint(16, (BATCH, SEQ))
    document = torch.randint(3, (BATCH, SEQ)).sort(1).values
    inputs = {"ids": ids, "document": document, "labels": labels}
    return Net(attend, **options), inputs, dict.fromkeys(inputs, ("batch", "seq"))


def plain():
    return model(lambda net, q, k, v, document: flex_attention(q, k, v))


def causally():
    return model(lambda net, q, k, v, document: flex_attention(q, k, v, block_mask=blocks(causal)))


def in_a_window():
    return model(lambda net, q, k, v, document: flex_attention(q, k, v, block_mask=net.held))


def of_documents():
    def attend(net, q, k, v, document):
        same = and_masks(causal, lambda b, h, i, j: document[b, i] == document[b, j])
        return flex_attention(q, k, v, block_mask=blocks(same, BATCH))

    return model(attend)


def behind_a_prefix():
    def attend(net, q, k, v, document):
        seen = or_masks(causal, lambda b, h, i, j: j < net.prefix[b])
        return flex_attention(q, k, v, block_mask=blocks(seen, BATCH))

    return model(attend)


def by_distance():
    return model(lambda net, q, k, v, document: compiled(q, k, v, score_mod=falling, block_mask=blocks(causal)))


def by_a_table():
    def attend(net, q, k, v, document):
        return flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: score + net.table[h, i - j + SEQ])

    return model(attend)


def by_a_factor():
    def attend(net, q, k, v, document):
        return flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: score * net.table[h, i].sigmoid())

    return model(attend)


def in_a_condition():
    def attend(net, q, k, v, document):
        def score(value, b, h, i, j):
            seen = (i >= j) & (document[b, i] == document[b, j])
            return torch.where(seen, value - 0.1 * (h + 1) * (i - j), -float("inf"))

        return flex_attention(q, k, v, score_mod=score)

    return model(attend)


def with_a_cap():
    return model(lambda net, q, k, v, document: flex_attention(q, k, v, score_mod=capped, block_mask=blocks(causal)))


def of_groups():
    def attend(net, q, k, v, document):
        return flex_attention(q, k, v, block_mask=blocks(causal), enable_gqa=True)

    return model(attend, kv=2)


def of_groups_with_a_cap():
    return model(
        lambda net, q, k, v, document: flex_attention(q, k, v, score_mod=capped, scale=0.3, enable_gqa=True), kv=2
    )


def that_sees_nothing():
    return model(lambda net, q, k, v, document: flex_attention(q, k, v, block_mask=blocks(earlier)))


def with_a_sum():
    def attend(net, q, k, v, document):
        y, total = flex_attention(q, k, v, block_mask=blocks(earlier), return_lse=True)
        return y * total.sigmoid()[..., None]

    return model(attend)


def with_results():
    def attend(net, q, k, v, document):
        y, more = flex_attention(q, k, v, return_aux=AuxRequest(lse=True, max_scores=True))
        return y * (more.lse - more.max_scores).sigmoid()[..., None]

    return model(attend)


def by_rows():
    def attend(net, q, k, v, document):
        def bounded(b, h, i, j):
            return (j >= net.bounds[b][0]) & (j <= i + net.bounds[b][1])

        return flex_attention(q, k, v, block_mask=blocks(bounded, BATCH))

    return model(attend)
