"""Signatures that depend on a call's arguments: each function writes one for one family of operators."""

import math
from typing import Any

from ssdsl.model.call import Call, Tensor
from ssdsl.model.graph import Ref

Tensors = dict[str, Tensor]


def elementwise(call: Call, tensors: Tensors) -> str:
    """Every axis of the output, broadcast from the right; an addend of size one stays whole."""
    out = tensors[call.outputs[0]].shape
    return f"{', '.join(_broadcast(tensors[r].shape, out) for r in call.refs())} -> {_broadcast(out, out)}"


def elementwise_loss(call: Call, tensors: Tensors) -> str:
    """A loss summed over all its elements, or kept elementwise (`reduction="none"`)."""
    refs = [tensors[r].shape for r in call.refs()]
    full = max(refs, key=math.prod)
    whole = tensors[call.outputs[0]].shape == full
    return f"{', '.join(_broadcast(s, full) for s in refs)} -> {_broadcast(full, full) if whole else '_'}"


def _broadcast(shape: tuple[int, ...], out: tuple[int, ...]) -> str:
    shift = len(out) - len(shape)
    return " ".join("1" if n == 1 and out[i + shift] != 1 else f"d{i + shift}" for i, n in enumerate(shape)) or "_"


def letters(rank: int, word: str = "d") -> list[str]:
    return [f"{word}{i}" for i in range(rank)]


def _rank(call: Call, tensors: Tensors, at: int = 0) -> int:
    return len(tensors[call.refs()[at]].shape)


def _row(*operands: list[str]) -> str:
    return ", ".join(" ".join(o) or "_" for o in operands)


def addmm(call: Call, tensors: Tensors) -> str:
    bias = tensors[call.refs()[0]].shape
    return f"{'out+' if len(bias) == 1 else 'n out+'}, n k, k out -> n out"


def matmul(call: Call, tensors: Tensors) -> str:
    """Batched matrix product with broadcasting, after `torch.matmul`."""
    a, b = (tensors[r].shape for r in call.refs())
    out = tensors[call.outputs[0]].shape
    left = ["k"] if len(a) == 1 else ["n", "k"]
    right = ["k"] if len(b) == 1 else ["k", "out"]
    rows = (["n"] if len(a) > 1 else []) + (["out"] if len(b) > 1 else [])
    batch = out[: len(out) - len(rows)]
    heads = [_broadcast(s[:-2] if len(s) > 2 else (), batch) for s in (a, b)]
    pairs = [" ".join(t for t in (h if h != "_" else "", *r) if t) for h, r in zip(heads, (left, right), strict=True)]
    return f"{', '.join(pairs)} -> {' '.join([*letters(len(batch)), *rows]) or '_'}"


def einsum(call: Call, tensors: Tensors) -> str:
    equation = call.args[0].replace(" ", "")
    left, _, right = equation.partition("->")
    if not right and "->" not in equation:
        right = "".join(sorted(c for c in set(left) - {","} if left.count(c) == 1))
    return f"{', '.join(_spaced(o) for o in left.split(','))} -> {_spaced(right)}"


def _spaced(operand: str) -> str:
    return " ".join("..." if c == "." else c for c in operand.replace("...", ".")) or "_"


def attention(call: Call, tensors: Tensors) -> str:
    """softmax(q k^T) v over any batch axes, the last of them the heads; keys are combined by no kernel yet."""
    q, mask = tensors[call.refs()[0]].shape, call.argument("attn_mask")
    rank = len(q)
    batch = letters(rank - 3) + ["heads"] if rank > 2 else []
    query = "s!" if call.argument("is_causal") else "s"
    key_batch = batch
    if rank > 2 and tensors[call.refs()[1]].shape[-3] != q[-3]:  # grouped queries
        batch, key_batch = [*batch[:-1], "heads!"], [*batch[:-1], "groups!"]
    rows = [[*batch, query, "head_dim!"], [*key_batch, "t!", "head_dim!"], [*key_batch, "t!", "value_dim"]]
    if isinstance(mask, Ref):
        shape = tensors[mask.value].shape
        full = [*batch, query, "t!"]
        rows.append(["1" if n == 1 else x for n, x in zip(shape, full[len(full) - len(shape) :], strict=True)])
    return f"{_row(*rows)} -> {_row([*batch, query, 'value_dim'])}"


def softmax(call: Call, tensors: Tensors) -> str:
    """Normalises over one axis; of attention scores (four axes), the second is the heads."""
    rank = _rank(call, tensors)
    names = letters(rank)
    if rank == 4:
        names[1] = "heads"
    names[int(call.args[1]) % rank] = "over!"
    return f"{_row(names)} -> {_row(names)}"


def cross_entropy(call: Call, tensors: Tensors) -> str:
    """Summed over the labels. With class labels the vocabulary may be split: the kernel combines the parts."""
    logits, labels = (tensors[r] for r in call.refs()[:2])
    whole = call.argument("label_smoothing") or labels.dtype.startswith(("float", "bfloat"))
    names = letters(len(logits.shape))
    at = 1 if len(names) > 1 else 0
    same = len(labels.shape) == len(names)
    names[at] = "vocab!" if whole or len(names) != 2 else "vocab*"
    given = names if same else names[:at] + names[at + 1 :]
    out = given if tensors[call.outputs[0]].shape else []
    if call.argument("reduction") == 1:  # a mean that normalise could not turn into a sum
        names, given = [n.rstrip("!*") + "!" for n in names], [n.rstrip("!*") + "!" for n in given]
    weights = [["vocab!"]] if call.argument("weight") is not None else []
    return f"{_row(names, given, *weights)} -> {_row(out)}"


def index(call: Call, tensors: Tensors) -> str:
    """x[i, j, ...]: the indexed axes vanish, those of the index tensors (which broadcast) appear in their place."""
    given, indices = call.args[0].value, call.args[1]
    names = letters(len(tensors[given].shape))
    places = [i for i, item in enumerate(indices) if item is not None]
    shapes = [tensors[indices[i].value].shape for i in places]
    out_rank = len(tensors[call.outputs[0]].shape)
    rank = out_rank - (len(names) - len(places))
    full = tensors[call.outputs[0]].shape[places[0] : places[0] + rank] if _adjacent(places) else ()
    if not _adjacent(places):
        full = tensors[call.outputs[0]].shape[:rank]
    rows = [[("1" if n == 1 and full[i + rank - len(s)] != 1 else f"i{i + rank - len(s)}") for i, n in enumerate(s)] for s in shapes]
    kept = [n for i, n in enumerate(names) if i not in places]
    at = places[0] if _adjacent(places) else 0
    out = [*kept[:at], *letters(rank, "i"), *kept[at:]]
    names = [f"{n}!" if i in places else n for i, n in enumerate(names)]
    return f"{_row(names, *rows)} -> {_row(out)}"


def _adjacent(places: list[int]) -> bool:
    return places[-1] - places[0] == len(places) - 1


def index_select(call: Call, tensors: Tensors) -> str:
    names = letters(_rank(call, tensors))
    at = int(call.args[1]) % len(names)
    out = [*names[:at], "i", *names[at + 1 :]]
    names[at] += "!"
    return f"{_row(names, ['i'])} -> {_row(out)}"


def gather(call: Call, tensors: Tensors) -> str:
    """Only the axis gathered along differs between the input and the indices; axes that differ in size are whole."""
    x, i = (tensors[r].shape for r in call.refs())
    at = int(call.args[1]) % len(x)
    free = [k != at and x[k] == i[k] for k in range(len(x))]
    source = [f"d{k}" if f else f"a{k}!" for k, f in enumerate(free)]
    taken = [f"d{k}" if f else ("i" if k == at else f"b{k}!") for k, f in enumerate(free)]
    return f"{_row(source, taken)} -> {_row(taken)}"


def layer_norm(call: Call, tensors: Tensors) -> str:
    """Normalises over the last axes; its weights carry only these."""
    rank, count = _rank(call, tensors), len(call.args[1])
    normal = ["hidden!"] if count == 1 else [f"n{i}!" for i in range(count)]
    names = [*letters(rank - count), *normal]
    return f"{_row(names, *[normal] * (len(call.refs()) - 1))} -> {_row(names)}"


def group_norm(call: Call, tensors: Tensors) -> str:
    rank = _rank(call, tensors)
    names = ["b", "c!", *(f"{n}!" for n in letters(rank - 2))]
    return f"{_row(names, *[['c!']] * (len(call.refs()) - 1))} -> {_row(names)}"


def batch_norm(call: Call, tensors: Tensors) -> str:
    """Statistics over all but the channels: split along the batch, the kernel reduces them over the parts."""
    space = letters(_rank(call, tensors) - 2)
    if call.argument("training"):
        names = ["b*", "c", *(f"{n}!" for n in space)]
    else:
        names = ["b", "c", *space]
    return f"{_row(names, *[['c']] * (len(call.refs()) - 1))} -> {_row(names)}"


def convolution(call: Call, tensors: Tensors) -> str:
    """A patch embedding (stride = kernel) may be split in space; other kernels overlap, so space stays whole."""
    x, w = (tensors[r].shape for r in call.refs()[:2])
    rank = len(x) - 2
    stride, padding, dilation = (_tuple(call.argument(n), rank) for n in ("stride", "padding", "dilation"))
    patches = stride == w[2:] and set(padding) == {0} and set(dilation) == {1}
    patches = patches and all(n % k == 0 for n, k in zip(x[2:], w[2:], strict=True))
    kernel = [f"k{i}!" for i in range(rank)]
    grouped = call.argument("groups") != 1
    channels = ("c!", "g!", "o!") if grouped else ("c", "c", "o")
    space = [f"(p{i} k{i}!:{w[2 + i]})" if patches else f"x{i}!" for i in range(rank)]
    out = [f"p{i}" if patches else f"y{i}!" for i in range(rank)]
    bias = [[f"{channels[2]}+"]] if isinstance(call.argument("bias"), Ref) else []
    return f"{_row(['b', channels[0], *space], [channels[2], channels[1], *kernel], *bias)} -> {_row(['b', channels[2], *out])}"


def _tuple(value: Any, rank: int) -> tuple[Any, ...]:
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    return values * rank if len(values) == 1 else values


def spatial(call: Call, tensors: Tensors) -> str:
    """Pooling and resampling: batch and channels are free, the axes of space are whole."""
    rank = _rank(call, tensors)
    outs = [["b", "c", *(f"{n}!" for n in letters(rank - 2, "y"))] for _ in call.outputs]
    return f"{_row(['b', 'c', *(f'{n}!' for n in letters(rank - 2, 'x'))])} -> {_row(*outs)}"


def _reduced(call: Call, tensors: Tensors) -> tuple[set[int], bool]:
    rank = _rank(call, tensors)
    dims = call.argument("dim")
    dims = range(rank) if dims is None or dims == () else (dims if isinstance(dims, tuple) else (dims,))
    return {int(d) % max(1, rank) for d in dims}, bool(call.argument("keepdim"))


def reduce_sum(call: Call, tensors: Tensors) -> str:
    names = letters(_rank(call, tensors))
    gone, keep = _reduced(call, tensors)
    out = ["1" if i in gone else n for i, n in enumerate(names) if keep or i not in gone]
    return f"{_row(names)} -> {_row(out)}"


def reduce_whole(call: Call, tensors: Tensors) -> str:
    """A reduction that is no sum needs all of the axes it reduces."""
    names = letters(_rank(call, tensors))
    gone, keep = _reduced(call, tensors)
    out = ["1" if i in gone else n for i, n in enumerate(names) if keep or i not in gone]
    given = [f"{n}!" if i in gone else n for i, n in enumerate(names)]
    return f"{_row(given)} -> {_row(*[out] * len(call.outputs))}"


def along(call: Call, tensors: Tensors) -> str:
    """Works along some axes (slice, roll, cumsum, sort): these are whole, and new ones where they leave."""
    before = tensors[call.refs()[0]].shape
    dims = call.argument("dim") if call.argument("dim") is not None else call.argument("dims")
    if call.kind in ("tril", "triu"):
        dims = (-2, -1)
    axes = {int(d) % len(before) for d in (dims if isinstance(dims, tuple) else (0 if dims is None else dims,))}
    given = [f"a{i}!" if i in axes else f"d{i}" for i in range(len(before))]
    outs = [
        [f"b{i}!" if i in axes else f"d{i}" for i in range(len(before))]
        for o in call.outputs
        if o in tensors
    ]
    return f"{_row(given, *[given] * (len(call.refs()) - 1))} -> {_row(*outs)}"


def resize(call: Call, tensors: Tensors) -> str:
    """Axes whose size changes (padding, repetition) are whole; the others are untouched."""
    before, after = tensors[call.refs()[0]].shape, tensors[call.outputs[0]].shape
    shift = len(after) - len(before)
    given = [f"d{i + shift}" if n == after[i + shift] else f"a{i}!" for i, n in enumerate(before)]
    out = [f"d{i}" if i >= shift and before[i - shift] == n else f"b{i}!" for i, n in enumerate(after)]
    return f"{_row(given)} -> {_row(out)}"


def transpose(call: Call, tensors: Tensors) -> str:
    names = letters(_rank(call, tensors))
    a, b = (int(d) % len(names) for d in call.args[1:3])
    out = list(names)
    out[a], out[b] = out[b], out[a]
    return f"{_row(names)} -> {_row(out)}"


def permute(call: Call, tensors: Tensors) -> str:
    names = letters(_rank(call, tensors))
    return f"{_row(names)} -> {_row([names[d] for d in call.args[1]])}"


def expand(call: Call, tensors: Tensors) -> str:
    before, after = tensors[call.refs()[0]].shape, tensors[call.outputs[0]].shape
    return f"{_broadcast(before, after)} -> {_row(letters(len(after)))}"


def select(call: Call, tensors: Tensors) -> str:
    names = letters(_rank(call, tensors))
    at = int(call.args[1]) % len(names)
    out = names[:at] + names[at + 1 :]
    names[at] += "!"
    return f"{_row(names)} -> {_row(out)}"


def cat(call: Call, tensors: Tensors) -> str:
    refs = [r for r in call.refs() if math.prod(tensors[r].shape) or len(tensors[r].shape) > 1]
    rank = len(tensors[refs[0]].shape)
    at = int(call.argument("dim") or 0) % rank
    rows = [[f"p{k}!" if i == at else f"d{i}" for i in range(rank)] for k, _ in enumerate(refs)]
    return f"{_row(*rows)} -> {_row(['whole!' if i == at else f'd{i}' for i in range(rank)])}"


def stack(call: Call, tensors: Tensors) -> str:
    rank = _rank(call, tensors)
    at = int(call.argument("dim") or 0) % (rank + 1)
    names = letters(rank)
    return f"{_row(*[names] * len(call.refs()))} -> {_row([*names[:at], 'which!', *names[at:]])}"


def split(call: Call, tensors: Tensors) -> str:
    """Equal parts: the axis is parts times the rest, and the rest may be split. Unequal ones: the axis is whole."""
    rank = _rank(call, tensors)
    at = int(call.argument("dim") or 0) % rank
    names = letters(rank)
    sizes = {tensors[o].shape[at] for o in call.outputs}
    if len(sizes) > 1:
        outs = [[f"p{k}!" if i == at else n for i, n in enumerate(names)] for k in range(len(call.outputs))]
        return f"{_row([f'{n}!' if i == at else n for i, n in enumerate(names)])} -> {_row(*outs)}"
    given = [f"(which!:{len(call.outputs)} {n})" if i == at else n for i, n in enumerate(names)]
    return f"{_row(given)} -> {_row(*[names] * len(call.outputs))}"


def unbind(call: Call, tensors: Tensors) -> str:
    names = letters(_rank(call, tensors))
    at = int(call.argument("dim") or 0) % len(names)
    out = names[:at] + names[at + 1 :]
    names[at] += "!"
    return f"{_row(names)} -> {_row(*[out] * len(call.outputs))}"
