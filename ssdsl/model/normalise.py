"""Captured calls in a smaller vocabulary: identities vanish, a mean becomes a sum times one over the global count.

A plan computes what one device computes, not an average of averages (DESIGN section 3, "Exact loss"): so the sum, whose
parts add up, is an operator of its own, and the count is taken over the whole batch.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from ssdsl.model.call import Call, Tensor
from ssdsl.model.capture import Capture
from ssdsl.model.graph import Ref

aten = torch.ops.aten
SUM = 2  # the number of `reduction="sum"` in ATen
MEAN = 1


def normalise(capture: Capture) -> Capture:
    """The same computation without identities, with losses and means as sums, and views as `reshape`."""
    normal = Capture([], dict(capture.tensors), capture.origins, capture.constants, capture.loss, dict(capture.updates))
    renamed: dict[str, str] = {}
    for call in capture.calls:
        call = rename(call, renamed)
        if (same := _identity(call, normal)) is not None:
            renamed[call.outputs[0]] = renamed.get(same, same)
        else:
            normal.calls.extend(REWRITES[call.kind](call, normal) if call.kind in REWRITES else [call])
    normal.loss = renamed.get(capture.loss, capture.loss)
    normal.updates = {b: renamed.get(v, v) for b, v in normal.updates.items()}
    return normal


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


def _identity(call: Call, capture: Capture) -> str | None:
    """The value that the call returns unchanged, if it is such a call."""
    if not call.args or not isinstance(call.args[0], Ref):
        return None
    given = call.args[0].value
    before, after = capture.tensors.get(given), capture.tensors.get(call.outputs[0])
    if before is None or after is None or before.shape != after.shape or before.dtype != after.dtype:
        return None
    if call.kind in ("alias", "clone", "contiguous", "lift_fresh_copy", "_to_copy", "to"):
        return given
    if call.kind in ("view", "_unsafe_view", "reshape", "expand", "flatten", "slice", "unflatten", "squeeze"):
        return given
    if call.kind == "dropout" and not (call.args[1] and call.args[2]):
        return given
    if call.kind in ("pad", "constant_pad_nd"):
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
        kwargs={},
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
    count = math.prod(torch.broadcast_shapes(*shapes))
    total = _temporary(call, "total", capture, capture.tensors[call.outputs[0]])
    yield replace(_with_argument(call, "reduction", SUM), name=total, outputs=(total,))
    yield _divide(call, total, count)


def _cross_entropy(call: Call, capture: Capture) -> Iterator[Call]:
    """The mean over the labels that are not ignored: a sum, and the global count of valid labels."""
    labels = call.argument("target").value
    classes = not capture.tensors[labels].dtype.startswith(("float", "bfloat"))
    if call.argument("reduction") != MEAN or call.argument("weight") is not None:
        yield call
        return
    scalar = capture.tensors[call.outputs[0]]
    total = _temporary(call, "total", capture, scalar)
    yield replace(_with_argument(call, "reduction", SUM), name=total, outputs=(total,))
    if not classes:
        shape = capture.tensors[labels].shape
        yield _divide(call, total, math.prod(shape) // shape[1 if len(shape) > 1 else 0])
        return
    valid = _temporary(call, "valid", capture, Tensor(capture.tensors[labels].shape, "bool"))
    count = _temporary(call, "count", capture, Tensor((), "int64"))
    yield replace(
        call,
        kind="ne",
        target=aten.ne.Scalar,
        args=(Ref(labels), call.argument("ignore_index")),
        kwargs={},
        name=valid,
        outputs=(valid,),
    )
    yield replace(call, kind="sum", target=aten.sum.default, args=(Ref(valid),), kwargs={}, name=count, outputs=(count,))
    yield replace(call, kind="div", target=aten.div.Tensor, args=(Ref(total), Ref(count)), kwargs={})


def _batch_norm(call: Call, capture: Capture) -> Iterator[Call]:
    """The functional form returns new running statistics; the program's own call updates them in place."""
    x, weight, bias, mean, variance, training, momentum, eps = call.args
    for statistics in (mean, variance):
        capture.updates.pop(statistics.value, None)
    args = (x, weight, bias, mean, variance, training, momentum, eps, False)
    yield replace(
        call, kind="batch_norm", target=aten.batch_norm.default, args=args, kwargs={}, outputs=(call.outputs[0],)
    )



def _divide(call: Call, total: str, count: int) -> Call:
    return replace(call, kind="div", target=aten.div.Tensor, args=(Ref(total), count), kwargs={})


def _temporary(call: Call, word: str, capture: Capture, tensor: Tensor) -> str:
    name = f"{call.name}_{word}"
    capture.tensors[name] = tensor
    return name


def _with_argument(call: Call, name: str, value: object) -> Call:
    """The call with one argument of its schema replaced, all of them given by position."""
    args = tuple(
        value if p.name == name else call.argument(p.name) for p in call.target._schema.arguments if not p.kwarg_only
    )
    return replace(call, args=args)


REWRITES: dict[str, Callable[[Call, Capture], Iterator[Call]]] = {
    **dict.fromkeys(
        ("view", "_unsafe_view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "squeeze_"), _reshape
    ),
    "mean": _mean,
    **dict.fromkeys(("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d"), _pool_to_one),
    **dict.fromkeys(
        ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "soft_margin_loss"), _mean_loss
    ),
    "binary_cross_entropy_with_logits": _mean_loss,
    "cross_entropy_loss": _cross_entropy,
    "_native_batch_norm_legit_functional": _batch_norm,
}
