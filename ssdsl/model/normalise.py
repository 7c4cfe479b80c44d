"""Captured calls in a smaller vocabulary: identities vanish, a mean becomes a sum times one over the global count.

A plan computes what one device computes, not an average of averages: so the sum, whose
parts add up, is an operator of its own, and the count is taken over the whole batch.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from ssdsl.model.aligned_index import aligned_index, aligned_index_put
from ssdsl.model.call import Call, Tensor
from ssdsl.model.capture import Capture
from ssdsl.model.graph import Ref
from ssdsl.model.new_call import new_call as _new
from ssdsl.model.new_call import temporary as _temporary
from ssdsl.model.ops.loss import LOSSES
from ssdsl.model.ops.move import REGROUPINGS

aten = torch.ops.aten
SUM = 2  # the number of `reduction="sum"` in ATen
MEAN = 1


def normalise(capture: Capture) -> Capture:
    """The same computation without identities, with losses and means as sums, and views as `reshape`."""
    normal = Capture([], dict(capture.tensors), capture.origins, capture.constants, capture.loss, dict(capture.updates))
    renamed: dict[str, str] = {}
    learns = {name for name, tensor in capture.tensors.items() if tensor.differentiable}
    for call in capture.calls:
        call = _on_its_device(rename(call, renamed))
        depends = not learns.isdisjoint(call.refs())
        if (same := _identity(call, normal, depends)) is not None:
            renamed[call.outputs[0]] = renamed.get(same, same)
        else:
            learns.update(call.outputs if depends else ())
            rewrite = REWRITES.get(call.kind) if call.target.namespace == "aten" else None
            normal.calls.extend(rewrite(call, normal) if rewrite else [call])
    normal.loss = renamed.get(capture.loss, capture.loss)
    normal.updates = {b: renamed.get(v, v) for b, v in normal.updates.items()}
    return normal


def _on_its_device(call: Call) -> Call:
    """Without the device, which is that of the tensors that it reads: a part runs wherever the plan puts it."""
    if call.refs() and "device" in call.kwargs:
        return replace(call, kwargs={k: v for k, v in call.kwargs.items() if k != "device"})
    return call


def rename(call: Call, names: dict[str, str]) -> Call:
    """The call reading other values: `names` maps old to new."""

    def new(item: object) -> object:
        match item:
            case Ref(value):
                return Ref(names.get(value, value))
            case tuple():
                return tuple(new(i) for i in item)
        return item

    args = new(call.args)
    assert isinstance(args, tuple)
    return replace(call, args=args, kwargs={k: new(v) for k, v in call.kwargs.items()})


def _identity(call: Call, capture: Capture, learns: bool) -> str | None:
    """The value that the call returns unchanged, if it is such a call; `learns` if a gradient could flow through it."""
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
    if call.kind in ("add", "sub") and call.args[1] == 0 and not isinstance(call.args[1], Ref):  # as of Python's `sum`
        return given
    return None


def _reshape(call: Call, capture: Capture) -> Iterator[Call]:
    shape = capture.tensors[call.outputs[0]].shape
    yield replace(call, kind="reshape", target=aten.reshape.default, args=(call.args[0], shape), kwargs={})


def _mean(call: Call, capture: Capture) -> Iterator[Call]:
    """mean(x, dims) = sum(x, dims) / n."""
    given, out = call.args[0].value, call.outputs[0]
    count = math.prod(capture.tensors[given].shape) // max(1, math.prod(capture.tensors[out].shape))
    total = _temporary(call, "total", capture, capture.tensors[out])
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


def _pool_to_one(call: Call, capture: Capture) -> Iterator[Call]:
    """Adaptive average pooling to size one is the mean over the pooled axes."""
    sizes = call.args[1]
    if any(s != 1 for s in sizes):
        yield call
        return
    rank = len(capture.tensors[call.args[0].value].shape)
    axes = tuple(range(rank - len(sizes), rank))
    yield from _mean(replace(call, target=aten.mean.dim, args=(call.args[0], axes, True)), capture)


def _mean_loss(call: Call, capture: Capture) -> Iterator[Call]:
    """An elementwise loss with `reduction="mean"` is its sum over the number of elements."""
    if call.argument("reduction") != MEAN:
        yield call
        return
    shapes = [capture.tensors[r].shape for r in call.refs()[:2]]
    count = math.prod(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]
    total = _temporary(call, "total", capture, capture.tensors[call.outputs[0]])
    yield replace(_with_argument(call, "reduction", SUM), name=total, outputs=(total,))
    yield _divide(call, total, count)


def _cross_entropy(call: Call, capture: Capture) -> Iterator[Call]:
    """The mean over the labels that are not ignored: a sum, and the global count (or weight) of valid labels."""
    labels = call.argument("target").value
    classes = not capture.tensors[labels].dtype.startswith(("float", "bfloat"))
    if call.argument("reduction") != MEAN:
        yield _with_argument(call, "reduction", call.argument("reduction"))
        return
    scalar = capture.tensors[call.outputs[0]]
    total = _temporary(call, "total", capture, scalar)
    yield replace(_with_argument(call, "reduction", SUM), name=total, outputs=(total,))
    if not classes:
        shape = capture.tensors[labels].shape
        yield _divide(call, total, math.prod(shape) // shape[1 if len(shape) > 1 else 0])
        return
    shape = capture.tensors[labels].shape
    ignored = call.argument("ignore_index")
    valid = yield from _new(call, "valid", capture, Tensor(shape, "bool"), aten.ne.Scalar, Ref(labels), ignored)
    if (weight := call.argument("weight")) is not None:  # an ignored label is no row of it
        dtype = capture.tensors[weight.value].dtype
        inside = yield from _new(call, "inside", capture, Tensor(shape, "int64"), aten.mul.Tensor, Ref(labels), valid)
        picked = yield from _new(call, "picked", capture, Tensor(shape, dtype), aten.index.Tensor, weight, (inside,))
        valid = yield from _new(call, "weight", capture, Tensor(shape, dtype), aten.mul.Tensor, picked, valid)
    dtype = "int64" if weight is None else capture.tensors[weight.value].dtype
    count = yield from _new(call, "count", capture, Tensor((), dtype), aten.sum.default, valid)
    yield replace(call, kind="div", target=aten.div.Tensor, args=(Ref(total), count), kwargs={})


def _batch_norm(call: Call, capture: Capture) -> Iterator[Call]:
    """The functional form returns new running statistics; the program's own call updates them in place."""
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


def _embedding(call: Call, capture: Capture) -> Iterator[Call]:
    """A padding index gives its row no gradient: an embedding without one, detached where the result is that row."""
    padding = call.argument("padding_idx")
    if padding < 0 or call.argument("scale_grad_by_freq"):
        yield call
        return
    rows = capture.tensors[call.outputs[0]]
    ids = call.args[1]
    shape = capture.tensors[ids.value].shape
    found = yield from _new(call, "rows", capture, rows, call.target, *call.args[:2])
    still = yield from _new(call, "still", capture, rows, aten.detach.default, found)
    word = yield from _new(call, "word", capture, Tensor(shape, "bool"), aten.ne.Scalar, ids, padding)
    column = Tensor((*shape, 1), "bool")
    mask = yield from _new(call, "mask", capture, column, aten.reshape.default, word, column.shape)
    yield replace(call, kind="where", target=aten.where.self, args=(mask, found, still), kwargs={})


def _add_number(call: Call, capture: Capture) -> Iterator[Call]:
    """A number added to a scalar becomes a constant: a term like any other, of which a sum of parts needs one.

    Half types stay as they are: there the number is added in float32.
    """
    out, number = capture.tensors[call.outputs[0]], call.argument("other")
    if out.shape or out.dtype not in ("float32", "float64") or isinstance(number, Ref):
        yield call
        return
    is_reversed = call.kind == "rsub"  # number - alpha * x
    scaled = number if is_reversed else number * call.argument("alpha")
    dtype = {"dtype": getattr(torch, out.dtype), "device": torch.device("cpu")}
    name = _temporary(call, "number", capture, Tensor((), out.dtype))
    full = aten.full.default
    yield replace(call, kind="full", target=full, args=((), scaled), kwargs=dtype, name=name, outputs=(name,))
    x = call.args[0]
    if is_reversed:
        kwargs = {"alpha": call.argument("alpha")}
        yield replace(call, kind="sub", target=aten.sub.Tensor, args=(Ref(name), x), kwargs=kwargs)
    else:
        target = getattr(aten, call.kind).Tensor
        yield replace(call, target=target, args=(x, Ref(name)), kwargs={})


def _filled(call: Call, capture: Capture) -> Iterator[Call]:
    """A new tensor of one value, which takes no more than its dtype from another: a constant."""
    out = capture.tensors[call.outputs[0]]
    value = {"new_zeros": 0, "new_empty": 0, "new_ones": 1}.get(call.kind, call.argument("fill_value"))
    kwargs = {"dtype": getattr(torch, out.dtype), "device": torch.device("cpu")}
    yield replace(call, kind="full", target=aten.full.default, args=(out.shape, value), kwargs=kwargs)


def _copy(call: Call, capture: Capture) -> Iterator[Call]:
    """Copying into a tensor gives the other one, in this shape and dtype."""
    out, source = capture.tensors[call.outputs[0]], call.args[1]
    if capture.tensors[source.value].dtype != out.dtype:
        tensor = replace(capture.tensors[source.value], dtype=out.dtype)
        name = _temporary(call, "converted", capture, tensor)
        kwargs = {"dtype": getattr(torch, out.dtype)}
        target = aten._to_copy.default
        yield replace(call, kind="_to_copy", target=target, args=(source,), kwargs=kwargs, name=name, outputs=(name,))
        source = Ref(name)
    yield replace(call, kind="expand", target=aten.expand.default, args=(source, out.shape), kwargs={})


def _repeat(call: Call, capture: Capture) -> Iterator[Call]:
    """Repeating axes of size one is expanding them, which leaves them free to be split."""
    given, out = (capture.tensors[v].shape for v in (call.args[0].value, call.outputs[0]))
    old = (1,) * (len(out) - len(given)) + given
    if all(n in (1, m) for n, m in zip(old, out, strict=True)):
        yield replace(call, kind="expand", target=aten.expand.default, args=(call.args[0], out), kwargs={})
    else:
        yield call


def _divide(call: Call, total: str, count: int) -> Call:
    return replace(call, kind="div", target=aten.div.Tensor, args=(Ref(total), count), kwargs={})


def _with_argument(call: Call, name: str, value: object) -> Call:
    """The call with one argument of its schema replaced, all of them given by position."""
    args = tuple(
        value if p.name == name else call.argument(p.name) for p in call.target._schema.arguments if not p.kwarg_only
    )
    return replace(call, args=args)


REWRITES: dict[str, Callable[[Call, Capture], Iterator[Call]]] = {
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
    "index": aligned_index,
    "index_put": aligned_index_put,
}
