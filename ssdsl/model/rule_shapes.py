"""Signatures that depend on a call's arguments: each function writes one for one family of operators."""

import re
from typing import Any

import torch

from ssdsl.model.call import Call, Tensor
from ssdsl.model.graph import Ref

Tensors = dict[str, Tensor]


def elementwise(call: Call, tensors: Tensors) -> str:
    """Every axis of the outputs, broadcast from the right; an addend of size one stays whole."""
    out = tensors[call.outputs[0]].shape
    outs = [_broadcast(out, out)] * len(call.outputs)
    return f"{', '.join(_broadcast(tensors[r].shape, out) for r in call.refs())} -> {', '.join(outs)}"


def elementwise_loss(call: Call, tensors: Tensors) -> str:
    """A loss summed over all its elements, or kept elementwise (`reduction="none"`)."""
    refs = [tensors[r].shape for r in call.refs()]
    full = tuple(torch.broadcast_shapes(*refs))  # type: ignore[no-untyped-call]
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
    """A matrix product and an addend that broadcasts to it (`addmm`, `addmv`, `baddbmm`)."""
    shapes = [tensors[r].shape for r in call.refs()]
    rows = {"addmm": ["n", "out"], "addmv": ["n"], "baddbmm": ["b", "n", "out"]}[call.kind]
    out = tensors[call.outputs[0]].shape
    addend = ["1" if n == 1 and out[i] != 1 else rows[i] for i, n in enumerate(shapes[0], len(rows) - len(shapes[0]))]
    batch = ["b"] if call.kind == "baddbmm" else []
    right = [*batch, "k", *(["out"] if "out" in rows else [])]
    return f"{_row(addend)}+, {_row([*batch, 'n', 'k'], right)} -> {_row(rows)}"


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
        right = "".join(sorted(c for c in set(left) - {",", "."} if left.count(c) == 1))
        right = ("..." if "..." in left else "") + right
    sizes: dict[str, int] = {}
    operands = [list(o.replace("...", ".")) for o in left.split(",")]
    for letters_of, ref in zip(operands, call.refs(), strict=True):
        for letter, n in _sized(letters_of, tensors[ref].shape):
            sizes[letter] = max(n, sizes.get(letter, 1))
    diagonal = {c for o in operands for c in o if o.count(c) > 1}
    marked = {c: f"{c}!" if c in diagonal else c for c in sizes}
    rows = []
    for letters_of, ref in zip(operands, call.refs(), strict=True):
        own = dict(_sized(letters_of, tensors[ref].shape))
        rows.append(["..." if c == "." else "1" if own[c] != sizes[c] else marked[c] for c in letters_of])
    return f"{_row(*rows)} -> {_row([marked.get(c, '...') for c in right.replace('...', '.')])}"


def _sized(letters_of: list[str], shape: tuple[int, ...]) -> list[tuple[str, int]]:
    """The letters of an einsum operand with the sizes of their axes; `.` stands for the axes that are left."""
    at = letters_of.index(".") if "." in letters_of else len(letters_of)
    after = len(letters_of) - at - 1
    pairs = list(zip(letters_of[:at], shape, strict=False))
    return pairs + (list(zip(letters_of[at + 1 :], shape[len(shape) - after :], strict=True)) if after > 0 else [])


def attention(call: Call, tensors: Tensors) -> str:
    """softmax(q k^T) v over any batch axes, the last of them the heads; keys are combined by no kernel yet."""
    q, k, mask = tensors[call.refs()[0]].shape, tensors[call.refs()[1]].shape, call.argument("attn_mask")
    rank = len(q)
    batch = [*letters(rank - 3), "heads"] if rank > 2 else []
    query = "s!" if call.argument("is_causal") else "s"
    key_batch = ["1" if k[i] == 1 != q[i] else x for i, x in enumerate(batch)]
    if call.argument("enable_gqa") and k[-3] != q[-3]:  # queries in groups, each with one key: splits by groups
        batch, key_batch[-1] = [*batch[:-1], f"(heads in_group!:{q[-3] // k[-3]})"], "heads"
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


def embedding(call: Call, tensors: Tensors) -> str | None:
    """The vocabulary vanishes: its parts add up. Gradients scaled by a word's frequency in the batch do not."""
    return None if call.argument("scale_grad_by_freq") else "vocab hidden, ... -> ... hidden"


def cross_entropy(call: Call, tensors: Tensors) -> str:
    """Summed over the labels. With class labels the vocabulary may be split: the kernel combines the parts."""
    logits, labels = (tensors[r] for r in call.refs()[:2])
    whole = (
        call.kind == "nll_loss_nd" or call.argument("label_smoothing") or labels.dtype.startswith(("float", "bfloat"))
    )
    names = letters(len(logits.shape))
    at = 1 if len(names) > 1 else 0
    same = len(labels.shape) == len(names)
    out_shape = tensors[call.outputs[0]].shape
    names[at] = "vocab!" if whole or len(names) < 2 or out_shape else "vocab*"
    given = names if same else names[:at] + names[at + 1 :]
    out = given if out_shape else []
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
    rows = [
        [("1" if n == 1 and full[i + rank - len(s)] != 1 else f"i{i + rank - len(s)}") for i, n in enumerate(s)]
        for s in shapes
    ]
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


def scatter(call: Call, tensors: Tensors) -> str:
    """Writes along one axis, which is whole; the others are free where all operands that have them agree."""
    shapes = [tensors[r].shape for r in call.refs()]
    rank = len(shapes[0])
    at = int(call.argument("dim")) % rank
    free = [k != at and all(s[k] == shapes[0][k] for s in shapes if len(s) == rank) for k in range(rank)]
    names = [f"d{k}" if f else f"a{k}!" for k, f in enumerate(free)]
    rows = [names]
    for number, shape in enumerate(shapes[1:]):
        if len(shape) == rank:
            rows.append([n if f else f"b{number}{k}!" for k, (n, f) in enumerate(zip(names, free, strict=True))])
        elif len(shape) == rank - 1 and call.kind == "select_scatter":
            rows.append([*names[:at], *names[at + 1 :]])
        else:
            rows.append([f"i{number}!"] if shape else [])
    return f"{_row(*rows)} -> {_row(names)}"


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
    rank = len(w) - 2
    stride, padding, dilation = (_tuple(call.argument(n), rank) for n in ("stride", "padding", "dilation"))
    patches = stride == w[2:] and set(padding) <= {0, "valid"} and set(dilation) == {1}
    patches = patches and all(n % k == 0 for n, k in zip(x[-rank:], w[2:], strict=True))
    kernel = [f"k{i}!" for i in range(rank)]
    channels = ("c", "o", "c", "o") if call.argument("groups") == 1 else ("c!", "o!", "g!", "o!")
    space = [f"(p{i} k{i}!:{w[2 + i]})" if patches else f"x{i}!" for i in range(rank)]
    out = [f"p{i}" if patches else f"y{i}!" for i in range(rank)]
    return _convolved(call, x, channels, space, kernel, out)


def transposed_convolution(call: Call, tensors: Tensors) -> str:
    x, w = (tensors[r].shape for r in call.refs()[:2])
    rank = len(w) - 2
    channels = ("c", "c", "o", "o") if call.argument("groups") == 1 else ("c!", "c!", "g!", "o!")
    axes = [[f"{n}!" for n in letters(rank, word)] for word in ("x", "k", "y")]
    return _convolved(call, x, channels, *axes)


def _convolved(
    call: Call, x: tuple[int, ...], channels: tuple[str, ...], space: list[str], kernel: list[str], out: list[str]
) -> str:
    """`channels` are those of the input, of the weight's first two axes and of the output, which a bias has."""
    given, first, second, made = channels
    batch = ["b"] if len(x) == len(space) + 2 else []
    bias = [[f"{made}+"]] if isinstance(call.argument("bias"), Ref) else []
    return f"{_row([*batch, given, *space], [first, second, *kernel], *bias)} -> {_row([*batch, made, *out])}"


def _tuple(value: Any, rank: int) -> tuple[Any, ...]:
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    return values * rank if len(values) == 1 else values


def spatial(call: Call, tensors: Tensors) -> str:
    """Pooling and resampling: batch and channels are free, the axes of space (as many as the name says) are whole."""
    found = re.search(r"(\d)d", call.kind)
    assert found, call.kind
    count = int(found[1])
    free = letters(_rank(call, tensors) - count)
    outs = [[*free, *(f"{n}!" for n in letters(count, "y"))] for _ in call.outputs]
    return f"{_row([*free, *(f'{n}!' for n in letters(count, 'x'))])} -> {_row(*outs)}"


def pixel_shuffle(call: Call, tensors: Tensors) -> str:
    r, batch = int(call.args[1]), letters(_rank(call, tensors) - 3)
    given = [*batch, f"(c r!:{r} q!:{r})", "h", "w"]
    return f"{_row(given)} -> {_row([*batch, 'c', f'(h r!:{r})', f'(w q!:{r})'])}"


def pixel_unshuffle(call: Call, tensors: Tensors) -> str:
    r, batch = int(call.args[1]), letters(_rank(call, tensors) - 3)
    given = [*batch, "c", f"(h r!:{r})", f"(w q!:{r})"]
    return f"{_row(given)} -> {_row([*batch, f'(c r!:{r} q!:{r})', 'h', 'w'])}"


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
    if dims == ():  # a roll of the flattened tensor
        dims = tuple(range(len(before)))
    axes = {int(d) % len(before) for d in (dims if isinstance(dims, tuple) else (0 if dims is None else dims,))}
    given = [f"a{i}!" if i in axes else f"d{i}" for i in range(len(before))]
    outs = [[f"b{i}!" if i in axes else f"d{i}" for i in range(len(before))] for o in call.outputs if o in tensors]
    return f"{_row(given, *[given] * (len(call.refs()) - 1))} -> {_row(*outs)}"


def pad(call: Call, tensors: Tensors) -> str:
    """Padded axes are whole, new ones where they leave; the amounts are given in pairs, the last axis first."""
    rank, amounts = _rank(call, tensors), call.args[1]
    padded = {rank - 1 - i // 2 for i, n in enumerate(amounts) if n}
    given, out = ([f"{w}{i}!" if i in padded else f"d{i}" for i in range(rank)] for w in "ab")
    return f"{_row(given)} -> {_row(out)}"


def repeat(call: Call, tensors: Tensors) -> str:
    """A repeated axis is the number of repetitions times what it was, which may be split."""
    names, times = letters(_rank(call, tensors)), call.args[1]
    new = len(times) - len(names)
    out = [f"r{i}!" for i in range(new)]
    out += [n if k == 1 else f"(r{i}!:{k} {n})" for i, (n, k) in enumerate(zip(names, times[new:], strict=True), new)]
    return f"{_row(names)} -> {_row(out)}"


def diagonal(call: Call, tensors: Tensors) -> str:
    names = letters(_rank(call, tensors))
    axes = {int(call.argument(n)) % len(names) for n in ("dim1", "dim2")}
    out = [n for i, n in enumerate(names) if i not in axes]
    given = [f"{n}!" if i in axes else n for i, n in enumerate(names)]
    return f"{_row(given)} -> {_row([*out, 'diagonal!'])}"


def unfold(call: Call, tensors: Tensors) -> str:
    """Windows along one axis, each as a new last axis."""
    names = letters(_rank(call, tensors))
    at = int(call.argument("dimension")) % len(names)
    out = [f"windows{i}!" if i == at else n for i, n in enumerate(names)]
    return f"{_row([f'{n}!' if i == at else n for i, n in enumerate(names)])} -> {_row([*out, 'inside!'])}"


def transpose(call: Call, tensors: Tensors) -> str:
    names = letters(_rank(call, tensors))
    a, b = (int(d) % len(names) for d in (call.args[1:3] or (0, -1)))
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
    """The joined axis is whole. An empty vector joins anything, and has no part in it."""
    shapes = [tensors[r].shape for r in call.refs()]
    out = tensors[call.outputs[0]].shape
    at = int(call.argument("dim") or 0) % len(out)
    names = letters(len(out))
    rows = [
        [f"p{k}!" if i == at else n for i, n in enumerate(names)] if len(s) == len(out) else [f"p{k}!"]
        for k, s in enumerate(shapes)
    ]
    return f"{_row(*rows)} -> {_row(['whole!' if i == at else n for i, n in enumerate(names)])}"


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


def glu(call: Call, tensors: Tensors) -> str:
    """One half of an axis gates the other: the axis is two times the rest, which may be split."""
    names = letters(_rank(call, tensors))
    at = int(call.argument("dim")) % len(names)
    return f"{_row([f'(half!:2 {n})' if i == at else n for i, n in enumerate(names)])} -> {_row(names)}"


def unbind(call: Call, tensors: Tensors) -> str:
    names = letters(_rank(call, tensors))
    at = int(call.argument("dim") or 0) % len(names)
    out = names[:at] + names[at + 1 :]
    names[at] += "!"
    return f"{_row(names)} -> {_row(*[out] * len(call.outputs))}"
