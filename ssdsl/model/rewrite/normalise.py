"""Rewrites captured calls in a smaller vocabulary: identities vanish, means become sums over the global count.

A plan computes the same as one device, not an average of averages. So the sum, whose parts add up, is an operator of
its own, and the count is that of the whole batch.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from ssdsl.model.capture.call import CapturedCall, Tensor
from ssdsl.model.capture.capture import Capture
from ssdsl.model.graph import Origin, Ref, replace_refs
from ssdsl.model.ops.families.loss import LOSSES
from ssdsl.model.ops.families.move import REGROUPINGS
from ssdsl.model.rewrite.aligned_index import aligned_index, aligned_index_put
from ssdsl.model.rewrite.buffer_updates import check_statistics, compute_updates
from ssdsl.model.rewrite.fused import take_apart
from ssdsl.model.rewrite.new_call import new_call, temporary

aten = torch.ops.aten
SUM = 2  # the number of `reduction="sum"` in ATen
MEAN = 1


def normalise(capture: Capture) -> Capture:
    """The same computation without identities, with losses and means as sums, and with views as `reshape`."""
    normal = replace(capture, calls=[], tensors=dict(capture.tensors))
    renamed: dict[str, str] = {}
    learns = {name for name, tensor in capture.tensors.items() if tensor.differentiable}
    for call in capture.calls:
        call = _joining(_on_its_device(rename(call, renamed)), normal)
        depends = not learns.isdisjoint(call.refs())
        if (same := _identity(call, normal, depends)) is not None:
            renamed[call.outputs[0]] = renamed.get(same, same)
        else:
            renamed.update(_statistics(call))
            learns.update(call.outputs if depends else ())
            rewrite = REWRITES.get(call.kind) if call.target.namespace == "aten" else None
            normal.calls.extend(rewrite(call, normal) if rewrite else [call])
    normal.calls[:] = take_apart(normal)
    normal.loss = renamed.get(capture.loss, capture.loss)
    normal.updates = {b: renamed.get(v, v) for b, v in normal.updates.items()}
    normal.outputs = {n: renamed.get(v, v) for n, v in normal.outputs.items()}
    check_statistics(normal)
    compute_updates(normal)
    return normal


def _on_its_device(call: CapturedCall) -> CapturedCall:
    """The call without a device, if it reads tensors, which have one: a part runs where the plan places it."""
    if call.refs() and "device" in call.kwargs:
        return replace(call, kwargs={k: v for k, v in call.kwargs.items() if k != "device"})
    return call


def _joining(call: CapturedCall, capture: Capture) -> CapturedCall:
    """The call; a concatenation without empty tensors, such as a cache before its first use.

    These would keep its axis whole. They stay if they decide the dtype of the result.
    """
    if call.target.name() != "aten::cat":
        return call
    given = [(item, capture.tensors[item.value]) for item in call.args[0]]
    kept = tuple(item for item, tensor in given if math.prod(tensor.shape))
    dtype = capture.tensors[call.outputs[0]].dtype
    if not kept or any(capture.tensors[item.value].dtype != dtype for item in kept):
        return call
    return replace(call, args=(kept, *call.args[1:]))


def rename(call: CapturedCall, names: dict[str, str]) -> CapturedCall:
    """The call with other values as arguments: `names` maps old to new."""

    def new(item: Any) -> Any:
        return replace_refs(item, lambda name: Ref(names.get(name, name)))

    return replace(call, args=new(call.args), kwargs={k: new(v) for k, v in call.kwargs.items()})


def _identity(call: CapturedCall, capture: Capture, learns: bool) -> str | None:
    """The value that a call returns unchanged, if it does; `learns`: a gradient may flow through it."""
    if call.kind == "cat" and call.target.namespace == "aten" and len(call.args[0]) == 1:
        return str(call.args[0][0].value)
    if call.target is aten.copy.default:
        source = capture.tensors[call.args[1].value]
        return call.args[1].value if replace(source, differentiable=False) == capture.tensors[call.outputs[0]] else None
    if not call.args or not isinstance(call.args[0], Ref) or call.target.namespace != "aten":
        return None
    given = call.args[0].value
    before, after = capture.tensors.get(given), capture.tensors.get(call.outputs[0])
    if before is None or after is None or before.shape != after.shape or before.dtype != after.dtype:
        return None
    if call.kind in (
        "alias",
        "clone",
        "contiguous",
        "lift_fresh_copy",
        "_to_copy",
        "to",
        "expand",
        "slice",
        *REGROUPINGS,
    ):
        return given
    if call.kind == "detach" and not learns:
        return given
    if call.kind == "dropout" and not (call.args[1] and call.args[2]):
        return given
    if call.kind == "pad" and not any(call.args[1]):
        return given
    if call.kind in ("add", "sub") and call.args[1] == 0 and not isinstance(call.args[1], Ref):  # as in Python's `sum`
        return given
    return None


def _reshape(call: CapturedCall, capture: Capture) -> Iterator[CapturedCall]:
    if call.target is aten.view.dtype:  # the same bytes as numbers of another dtype
        yield call
        return
    shape = capture.tensors[call.outputs[0]].shape
    yield replace(call, kind="reshape", target=aten.reshape.default, args=(call.args[0], shape), kwargs={})


def _mean(call: CapturedCall, capture: Capture) -> Iterator[CapturedCall]:
    """mean(x, dims) = sum(x, dims) / n."""
    given, out = call.args[0].value, call.outputs[0]
    count = math.prod(capture.tensors[given].shape) // max(1, math.prod(capture.tensors[out].shape))
    total = temporary(call, "total", capture, capture.tensors[out])
    rank = len(capture.tensors[given].shape)
    dims = call.argument("dim") or tuple(range(rank))
    yield replace(
        call,
        kind="sum",
        target=aten.sum.dim_IntList,
        args=(call.args[0], tuple(d % rank for d in dims), bool(call.argument("keepdim"))),
        kwargs={k: v for k, v in call.kwargs.items() if k == "dtype"},
        name=total,
        outputs=(total,),
    )
    yield _divide(call, total, count)


def _pool_to_one(call: CapturedCall, capture: Capture) -> Iterator[CapturedCall]:
    """Adaptive average pooling to size one is the mean over the pooled axes."""
    sizes = call.args[1]
    if any(s != 1 for s in sizes):
        yield call
        return
    rank = len(capture.tensors[call.args[0].value].shape)
    axes = tuple(range(rank - len(sizes), rank))
    yield from _mean(replace(call, target=aten.mean.dim, args=(call.args[0], axes, True)), capture)


def _mean_loss(call: CapturedCall, capture: Capture) -> Iterator[CapturedCall]:
    """An elementwise loss with `reduction="mean"` is its sum over the number of elements."""
    if call.argument("reduction") != MEAN:
        yield call
        return
    shapes = [capture.tensors[r].shape for r in call.refs()[:2]]
    count = math.prod(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]
    total = temporary(call, "total", capture, capture.tensors[call.outputs[0]])
    yield replace(_with_argument(call, "reduction", SUM), name=total, outputs=(total,))
    yield _divide(call, total, count)


def _cross_entropy(call: CapturedCall, capture: Capture) -> Iterator[CapturedCall]:
    """The mean over valid labels is a sum over the count (or the total weight) of all labels that are not ignored."""
    labels = call.argument("target").value
    classes = not capture.tensors[labels].dtype.startswith(("float", "bfloat"))
    if call.argument("reduction") != MEAN:
        yield _with_argument(call, "reduction", call.argument("reduction"))
        return
    scalar = capture.tensors[call.outputs[0]]
    total = temporary(call, "total", capture, scalar)
    yield replace(_with_argument(call, "reduction", SUM), name=total, outputs=(total,))
    if not classes:
        shape = capture.tensors[labels].shape
        yield _divide(call, total, math.prod(shape) // shape[1 if len(shape) > 1 else 0])
        return
    shape = capture.tensors[labels].shape
    ignored = call.argument("ignore_index")
    valid = yield from new_call(call, "valid", capture, Tensor(shape, "bool"), aten.ne.Scalar, Ref(labels), ignored)
    if (weight := call.argument("weight")) is not None:  # an ignored label is no index of it: row 0 is taken, times 0
        dtype = capture.tensors[weight.value].dtype
        inside = yield from new_call(
            call, "inside", capture, Tensor(shape, "int64"), aten.mul.Tensor, Ref(labels), valid
        )
        picked = yield from new_call(
            call, "picked", capture, Tensor(shape, dtype), aten.index.Tensor, weight, (inside,)
        )
        valid = yield from new_call(call, "weight", capture, Tensor(shape, dtype), aten.mul.Tensor, picked, valid)
    dtype = "int64" if weight is None else capture.tensors[weight.value].dtype
    count = yield from new_call(call, "count", capture, Tensor((), dtype), aten.sum.default, valid)
    yield replace(call, kind="div", target=aten.div.Tensor, args=(Ref(total), count), kwargs={})


def _statistics(call: CapturedCall) -> dict[str, str]:
    """The buffer of each new running statistic that a functional batch norm returns: later calls read the buffer."""
    if call.kind != "_native_batch_norm_legit_functional" or not call.argument("training"):
        return {}
    buffers = (call.argument("running_mean"), call.argument("running_var"))
    return {new: old.value for new, old in zip(call.outputs[3:], buffers, strict=True) if isinstance(old, Ref)}


def _batch_norm(call: CapturedCall, capture: Capture) -> Iterator[CapturedCall]:
    """A batch norm in the form that updates running statistics in place, as the program calls it."""
    mean, variance = call.argument("running_mean"), call.argument("running_var")
    training = call.argument("training") if call.kind != "_native_batch_norm_legit_no_training" else False
    for statistics in (mean, variance):
        if training and statistics is not None:
            capture.updates.pop(statistics.value, None)
    x, weight, bias, momentum, eps = (call.argument(n) for n in ("input", "weight", "bias", "momentum", "eps"))
    args = (x, weight, bias, mean, variance, training, momentum, eps, False)
    yield replace(
        call, kind="batch_norm", target=aten.batch_norm.default, args=args, kwargs={}, outputs=(call.outputs[0],)
    )


def _embedding(call: CapturedCall, capture: Capture) -> Iterator[CapturedCall]:
    """An embedding whose padding row has no gradient: one without padding, detached where that row was taken."""
    padding = call.argument("padding_idx")
    if padding < 0 or call.argument("scale_grad_by_freq"):
        yield call
        return
    rows = capture.tensors[call.outputs[0]]
    ids = call.args[1]
    shape = capture.tensors[ids.value].shape
    found = yield from new_call(call, "rows", capture, rows, call.target, *call.args[:2], *_sparse(call))
    still = yield from new_call(call, "still", capture, rows, aten.detach.default, found)
    word = yield from new_call(call, "word", capture, Tensor(shape, "bool"), aten.ne.Scalar, ids, padding)
    column = Tensor((*shape, 1), "bool")
    mask = yield from new_call(call, "mask", capture, column, aten.reshape.default, word, column.shape)
    yield replace(call, kind="where", target=aten.where.self, args=(mask, found, still), kwargs={})


def _add_number(call: CapturedCall, capture: Capture) -> Iterator[CapturedCall]:
    """Makes a number that is added to a scalar a constant tensor: an addend that only one part of a sum may add.

    Calls in half precision stay as they are: torch adds the number in float32 there.
    """
    out, number = capture.tensors[call.outputs[0]], call.argument("other")
    if out.shape or out.dtype not in ("float32", "float64") or isinstance(number, Ref):
        yield call
        return
    is_reversed = call.kind == "rsub"  # number - alpha * x
    scaled = number if is_reversed else number * call.argument("alpha")
    dtype = {"dtype": getattr(torch, out.dtype), "device": torch.device("cpu")}
    name = temporary(call, "number", capture, Tensor((), out.dtype))
    full = aten.full.default
    yield replace(call, kind="full", target=full, args=((), scaled), kwargs=dtype, name=name, outputs=(name,))
    x = call.args[0]
    if is_reversed:
        kwargs = {"alpha": call.argument("alpha")}
        yield replace(call, kind="sub", target=aten.sub.Tensor, args=(Ref(name), x), kwargs=kwargs)
    else:
        target = getattr(aten, call.kind).Tensor
        yield replace(call, target=target, args=(x, Ref(name)), kwargs={})


def _filled(call: CapturedCall, capture: Capture) -> Iterator[CapturedCall]:
    """`new_full` and the like as `full`, a constant: they take only the dtype from their operand."""
    out = capture.tensors[call.outputs[0]]
    value = {"new_zeros": 0, "new_empty": 0, "new_ones": 1}.get(call.kind, call.argument("fill_value"))
    kwargs = {"dtype": getattr(torch, out.dtype), "device": torch.device("cpu")}
    yield replace(call, kind="full", target=aten.full.default, args=(out.shape, value), kwargs=kwargs)


def _copy(call: CapturedCall, capture: Capture) -> Iterator[CapturedCall]:
    """A copy into a tensor is its source, cast and expanded to the tensor's dtype and shape."""
    out, source = capture.tensors[call.outputs[0]], call.args[1]
    if capture.tensors[source.value].dtype != out.dtype:
        tensor = replace(capture.tensors[source.value], dtype=out.dtype)
        name = temporary(call, "converted", capture, tensor)
        kwargs = {"dtype": getattr(torch, out.dtype)}
        target = aten._to_copy.default
        yield replace(call, kind="_to_copy", target=target, args=(source,), kwargs=kwargs, name=name, outputs=(name,))
        source = Ref(name)
    yield replace(call, kind="expand", target=aten.expand.default, args=(source, out.shape), kwargs={})


def _split(call: CapturedCall, capture: Capture) -> Iterator[CapturedCall]:
    """`unsafe_split` as `split`: no captured call changes the parts in place."""
    yield replace(call, kind="split", target=aten.split.Tensor)


def _conjugate(call: CapturedCall, capture: Capture) -> Iterator[CapturedCall]:
    """torch marks a view as conjugate; a program computes the conjugate."""
    yield replace(call, kind="conj_physical", target=aten.conj_physical.default)


def _negate(call: CapturedCall, capture: Capture) -> Iterator[CapturedCall]:
    """torch marks a view as negative (the imaginary part of a conjugate); a program computes the negative."""
    yield replace(call, kind="neg", target=aten.neg.default)


def _weight_norm(call: CapturedCall, capture: Capture) -> Iterator[CapturedCall]:
    """g v / |v| for a direction v and a length g, where |v| is taken over all axes but `dim`."""
    v, g, dim = (call.argument(n) for n in ("v", "g", "dim"))
    norm = capture.tensors[g.value]
    others = tuple(d for d in range(len(norm.shape)) if d != dim % len(norm.shape))
    squares = yield from new_call(call, "squares", capture, capture.tensors[v.value], aten.mul.Tensor, v, v)
    total = yield from new_call(call, "total", capture, norm, aten.sum.dim_IntList, squares, others, True)
    length = yield from new_call(call, "length", capture, norm, aten.sqrt.default, total)
    scale = yield from new_call(call, "scale", capture, norm, aten.div.Tensor, g, length)
    yield replace(call, kind="mul", target=aten.mul.Tensor, args=(v, scale), kwargs={}, outputs=call.outputs[:1])


def _ctc_loss(call: CapturedCall, capture: Capture) -> Iterator[CapturedCall]:
    """Makes lengths tensors, which split with the batch. The mean divides each loss by its target's length, and their
    sum by the number of sequences."""
    scores, targets, *lengths = (call.argument(n) for n in ("log_probs", "targets", "input_lengths", "target_lengths"))
    count, words = (capture.tensors[x.value].shape for x in (scores, targets))
    if len(count) != 3 or len(words) != 2:
        yield call
        return
    for at, given in enumerate(lengths):
        if not isinstance(given, Ref):
            name = temporary(call, f"lengths{at}", capture, Tensor((len(given),), "int64"))
            capture.origins[name], capture.constants[name] = Origin.CONSTANT, torch.tensor(given)
            lengths[at] = Ref(name)
    out, reduction = capture.tensors[call.outputs[0]], call.argument("reduction")
    args = (scores, targets, *lengths, call.argument("blank"), 0, call.argument("zero_infinity"))
    each = Tensor((count[1],), out.dtype)
    if reduction != MEAN:
        args = (*args[:5], reduction, args[6])
        yield replace(call, kind="ctc_loss", target=aten.ctc_loss.Tensor, args=args, kwargs={})
        return
    losses = yield from new_call(call, "losses", capture, each, aten.ctc_loss.Tensor, *args)
    whole = Tensor(each.shape, capture.tensors[lengths[1].value].dtype)
    length = yield from new_call(call, "length", capture, whole, aten.clamp_min.default, lengths[1], 1)
    shares = yield from new_call(call, "shares", capture, each, aten.div.Tensor, losses, length)
    total = yield from new_call(call, "total", capture, out, aten.sum.default, shares)
    yield _divide(call, total.value, count[1])


def _sparse(call: CapturedCall) -> tuple[object, ...]:
    """Further arguments that make an embedding's gradient sparse if this call's is; no padding, no frequencies."""
    return (-1, False, True) if call.argument("sparse") else ()


BAGS = {0: "sum", 1: "mean", 2: "max"}  # the modes of an embedding bag


def _embedding_bag(call: CapturedCall, capture: Capture) -> Iterator[CapturedCall]:
    """Bags of one size are an embedding and a reduction, which split by bags; other calls stay as they are."""
    weight, ids, offsets = (call.argument(n) for n in ("weight", "indices", "offsets"))
    count, words = capture.tensors[offsets.value].shape[0], capture.tensors[ids.value].shape[0]
    bags = next((c for c in capture.calls if offsets.value in c.outputs), None)
    is_even = bags is not None and bags.kind == "arange" and count and bags.args == (0, words, words // count)
    others = (call.argument("scale_grad_by_freq"), call.argument("include_last_offset"))
    if not is_even or any(others) or call.argument("padding_idx") >= 0:
        yield call
        return
    size, table, out = words // count, capture.tensors[weight.value], capture.tensors[call.outputs[0]]
    bagged = Tensor((count, size), capture.tensors[ids.value].dtype)
    ids = yield from new_call(call, "bags", capture, bagged, aten.reshape.default, ids, bagged.shape)
    rows = Tensor((count, size, table.shape[1]), table.dtype)
    found = yield from new_call(call, "rows", capture, rows, aten.embedding.default, weight, ids, *_sparse(call))
    if (scale := call.argument("per_sample_weights")) is not None:
        column = Tensor((count, size, 1), capture.tensors[scale.value].dtype)
        scale = yield from new_call(call, "scale", capture, column, aten.reshape.default, scale, column.shape)
        found = yield from new_call(call, "scaled", capture, rows, aten.mul.Tensor, found, scale)
    outputs = call.outputs[:1]
    match BAGS[int(call.argument("mode"))]:
        case "sum":
            yield replace(call, kind="sum", target=aten.sum.dim_IntList, args=(found, (1,)), kwargs={}, outputs=outputs)
        case "mean":
            total = yield from new_call(call, "total", capture, out, aten.sum.dim_IntList, found, (1,))
            yield replace(_divide(call, total.value, size), outputs=outputs)
        case _:
            yield replace(call, kind="max", target=aten.max.dim, args=(found, 1), kwargs={}, outputs=call.outputs[:2])
            capture.tensors[call.outputs[1]] = Tensor(out.shape, "int64")


def _put(call: CapturedCall, capture: Capture) -> Iterator[CapturedCall]:
    """A write of one value by a mask becomes `where`; a write by other indices may become a scatter."""
    given, places, value = call.args[:3]
    mask = capture.tensors[places[0].value] if len(places) == 1 and places[0] is not None else None
    if mask is None or mask.dtype != "bool" or capture.tensors[value.value].shape or any(call.args[3:]):
        yield from aligned_index_put(call, capture)
        return
    tensor = capture.tensors[call.outputs[0]]
    column = Tensor((*mask.shape, *[1] * (len(tensor.shape) - len(mask.shape))), "bool")
    where = yield from new_call(call, "mask", capture, column, aten.reshape.default, places[0], column.shape)
    yield replace(call, kind="where", target=aten.where.self, args=(where, value, given), kwargs={})


def _scatter_reduce(call: CapturedCall, capture: Capture) -> Iterator[CapturedCall]:
    """A sum into a tensor is `scatter_add`, of which what is added may be cut too."""
    x, dim, index, src, reduce = (call.argument(n) for n in ("self", "dim", "index", "src", "reduce"))
    if reduce == "sum" and call.argument("include_self"):
        target = aten.scatter_add.default
        call = replace(call, kind="scatter_add", target=target, args=(x, dim, index, src), kwargs={})
    yield call


def _repeat(call: CapturedCall, capture: Capture) -> Iterator[CapturedCall]:
    """Repeats axes of size one by `expand`, whose axes may be split."""
    given, out = (capture.tensors[v].shape for v in (call.args[0].value, call.outputs[0]))
    old = (1,) * (len(out) - len(given)) + given
    if all(n in (1, m) for n, m in zip(old, out, strict=True)):
        yield replace(call, kind="expand", target=aten.expand.default, args=(call.args[0], out), kwargs={})
    else:
        yield call


def _divide(call: CapturedCall, total: str, count: int) -> CapturedCall:
    return replace(call, kind="div", target=aten.div.Tensor, args=(Ref(total), count), kwargs={})


def _with_argument(call: CapturedCall, name: str, value: object) -> CapturedCall:
    """The call with one argument of its schema replaced; all are given by position."""
    args = tuple(
        value if p.name == name else call.argument(p.name) for p in call.target._schema.arguments if not p.kwarg_only
    )
    return replace(call, args=args)


REWRITES: dict[str, Callable[[CapturedCall, Capture], Iterator[CapturedCall]]] = {
    **dict.fromkeys(REGROUPINGS, _reshape),
    "mean": _mean,
    **dict.fromkeys(("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d"), _pool_to_one),
    **dict.fromkeys(LOSSES, _mean_loss),
    **dict.fromkeys(("cross_entropy_loss", "nll_loss_nd"), _cross_entropy),
    **dict.fromkeys([f"_native_batch_norm_legit{form}" for form in ("", "_functional", "_no_training")], _batch_norm),
    "embedding": _embedding,
    **dict.fromkeys(("add", "sub", "rsub"), _add_number),
    **dict.fromkeys(("new_zeros", "new_ones", "new_full", "new_empty"), _filled),
    "copy": _copy,
    "repeat": _repeat,
    "scatter_reduce": _scatter_reduce,
    "index": aligned_index,
    "index_put": _put,
    "unsafe_split": _split,
    "_conj": _conjugate,
    "_neg_view": _negate,
    "_weight_norm_interface": _weight_norm,
    "_embedding_bag": _embedding_bag,
    "ctc_loss": _ctc_loss,
}
