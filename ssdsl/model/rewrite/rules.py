"""Rules for captured calls: the operators that a plan can split in place of one that it cannot.

Most rules are functions of torch's operators with the parameters of the operator that they replace (see `calls.py`).
Those that look at other calls, or only change a call, take the call and the capture, and give calls.
"""

import math
from collections.abc import Callable
from typing import Any

import torch

from ssdsl.model.capture.call import CapturedCall
from ssdsl.model.capture.call import Tensor as TensorType
from ssdsl.model.capture.capture import Capture
from ssdsl.model.capture.record import named
from ssdsl.model.graph import Origin, Ref
from ssdsl.model.ops.families.loss import LOSSES
from ssdsl.model.ops.families.move import REGROUPINGS
from ssdsl.model.rewrite.aligned_index import aligned_index, aligned_index_put
from ssdsl.model.rewrite.calls import Rule, inline, retarget, temporary, with_arguments
from ssdsl.record import replace

Rewrite = Callable[[CapturedCall, Capture], list[CapturedCall]]
Tensor = torch.Tensor
aten = torch.ops.aten
SUM = 2  # the number of `reduction="sum"` in ATen
MEAN = 1
CPU = torch.device("cpu")


def rewritten(call: CapturedCall, capture: Capture) -> list[CapturedCall]:
    """The calls in place of one: those of its rule, or the call itself if it has none."""
    if call.target.namespace != "aten":
        return [call]
    if (rule := RULES.get(call.kind)) is not None:
        return inline(rule, call, capture)
    rewrite = REWRITES.get(call.kind)
    return rewrite(call, capture) if rewrite is not None else [call]


# -- rules that need the arguments of a call alone ---------------------------------------------------------------------


def _mean(x: Tensor, dim: Any = None, keepdim: bool = False, **dtype: Any) -> Any:
    """mean(x, dims) = sum(x, dims) / n."""
    dims = tuple(d % x.dim() for d in dim or range(x.dim()))
    total = named("total", aten.sum.dim_IntList(x, dims, keepdim, **dtype))
    return total / (x.numel() // max(1, total.numel()))


def _adaptive_mean(x: Tensor, sizes: Any) -> Any:
    """Adaptive average pooling to size one is the mean over the pooled axes, with equal windows average pooling."""
    if all(n == 1 for n in sizes):
        return _mean(x, tuple(range(-len(sizes), 0)), True)
    pools = (aten.avg_pool1d.default, aten.avg_pool2d.default, aten.avg_pool3d.default)
    kernel = _equal_windows(x, sizes)
    return NotImplemented if kernel is None else pools[len(sizes) - 1](x, kernel)


def _adaptive_maximum(x: Tensor, sizes: Any) -> Any:
    """Adaptive max pooling with equal windows is max pooling. A line is a plane of one row."""
    if (kernel := _equal_windows(x, sizes)) is None:
        return NotImplemented
    if len(sizes) == 1:
        most, at = aten.max_pool2d_with_indices.default(x.unsqueeze(-2), [1, *kernel])
        return most.squeeze(-2), at.squeeze(-2)
    pools = (aten.max_pool2d_with_indices.default, aten.max_pool3d_with_indices.default)
    return pools[len(sizes) - 2](x, kernel)


def _equal_windows(x: Tensor, sizes: Any) -> list[int] | None:
    """The window of a result along each pooled axis; None if they are unequal."""
    pairs = [*zip(x.shape[-len(sizes) :], sizes, strict=True)]
    return None if any(n % results for n, results in pairs) else [n // results for n, results in pairs]


def _embedding(weight: Tensor, ids: Tensor, padding: int = -1, by_frequency: bool = False, sparse: bool = False) -> Any:
    """An embedding whose padding row has no gradient: one without padding, detached where that row was taken."""
    if padding < 0 or by_frequency:
        return NotImplemented
    rows = named("rows", aten.embedding.default(weight, ids, *_sparse(sparse)))
    is_word = named("is_word", ids != padding).reshape(*ids.shape, 1)
    return torch.where(is_word, rows, rows.detach())


def _sparse(is_sparse: bool) -> tuple[Any, ...]:
    """Further arguments of an embedding without padding and frequencies, whose gradient may be sparse."""
    return (-1, False, True) if is_sparse else ()


def _copy(x: Tensor, source: Tensor, non_blocking: bool = False) -> Any:
    """A copy into a tensor is its source, cast and expanded to the tensor's dtype and shape."""
    converted = source if source.dtype == x.dtype else aten._to_copy.default(source, dtype=x.dtype)
    return converted.expand(x.shape)


def _repeat(x: Tensor, repeats: Any) -> Any:
    """Repeats axes of size one by `expand`, whose axes may be split."""
    old = (1,) * (len(repeats) - x.dim()) + x.shape
    new = [n * times for n, times in zip(old, repeats, strict=True)]
    return x.expand(new) if all(n in (1, m) for n, m in zip(old, new, strict=True)) else NotImplemented


def _weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Any:
    """g v / |v| for a direction v and a length g, where |v| is taken over all axes but `dim`."""
    squares = v * v
    total = squares.sum([d for d in range(g.dim()) if d != dim % g.dim()], True)
    length = total.sqrt()
    scale = g / length
    return v * scale


def _scatter_reduce(
    x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Any:
    """Sums and means into a tensor are made of `scatter_add`, of which what is added may be cut too. Without itself, a
    position that nothing is added to stays as it is."""
    if reduce == "sum" and include_self:
        return aten.scatter_add.default(x, dim, index, source)
    if reduce not in ("sum", "mean") or not x.dtype.is_floating_point:
        return NotImplemented
    before = torch.ones_like(x) if include_self else torch.zeros_like(x)
    count = named("count", aten.scatter_add.default(before, dim, index, torch.ones_like(source)))
    rest = x if include_self else torch.where(count == 0, x, torch.zeros_like(x))
    total = named("total", aten.scatter_add.default(rest, dim, index, source))
    return total if reduce == "sum" else total / count.clamp(min=1)


def _in_pairs(scatter: Callable[..., Tensor]) -> Rule:
    """The rule of a write into a part of a tensor. Complex numbers are written as pairs of real ones, because torch
    does not differentiate writes of complex ones."""

    def rule(x: Tensor, source: Tensor, dim: int = 0, *place: Any) -> Any:
        if not x.dtype.is_complex:
            return NotImplemented
        pairs, written = named("pairs", aten.view_as_real.default(x)), aten.view_as_real.default(source)
        return aten.view_as_complex.default(named("written", scatter(pairs, written, dim % x.dim(), *place)))

    return rule


def _affine_grid(theta: Tensor, size: Any, align_corners: bool) -> Tensor:
    """The points of a grid that each sample maps: the points of the grid, which are constant, times its matrix."""
    lengths = size[2:]
    ends = [1 if align_corners and n > 1 else 1 - 1 / n for n in lengths]  # one point lies in the middle
    words: Any = {"dtype": theta.dtype, "device": CPU}
    lines = [aten.linspace.default(-end, end, n, **words) for end, n in zip(ends, lengths, strict=True)]
    at = [line.reshape([-1 if k == axis else 1 for k in range(len(size) - 2)]) for axis, line in enumerate(lines)]
    grid = torch.stack([axis.expand(lengths) for axis in [*reversed(at), aten.ones.default(lengths, **words)]], -1)
    return torch.einsum("...k,bok->b...o", grid, theta)


def _slice(x: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Any:
    """A slice of one position is that position: parts of the axis may then be summed, of which one has it."""
    places = range(x.shape[dim])[start:end:step] if x.dim() else ()
    return x.select(dim, places[0]).unsqueeze(dim) if len(places) == 1 < x.shape[dim] else NotImplemented


RULES: dict[str, Rule] = {
    "slice": _slice,
    "mean": _mean,
    **dict.fromkeys(("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d"), _adaptive_mean),
    **dict.fromkeys(("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d"), _adaptive_maximum),
    "embedding": _embedding,
    "copy": _copy,
    "repeat": _repeat,
    "scatter_reduce": _scatter_reduce,
    "affine_grid_generator": _affine_grid,
    "_weight_norm_interface": _weight_norm,
    "slice_scatter": _in_pairs(aten.slice_scatter.default),
    "select_scatter": _in_pairs(aten.select_scatter.default),
}

# -- rules that look at other calls, or change a call ------------------------------------------------------------------


def _reshape(call: CapturedCall, capture: Capture) -> list[CapturedCall]:
    if call.target is aten.view.dtype:  # the same bytes as numbers of another dtype
        return [call]
    return [retarget(call, aten.reshape.default, call.args[0], capture.tensors[call.outputs[0]].shape)]


def _becomes(target: Any) -> Rewrite:
    """A rewrite to another operator with the same parameters."""
    return lambda call, capture: [retarget(call, target, *call.args, **call.kwargs)]


def _filled(call: CapturedCall, capture: Capture) -> list[CapturedCall]:
    """`new_full` and the like as `full`, a constant: they take only the dtype from their operand."""
    out = capture.tensors[call.outputs[0]]
    value = {"new_zeros": 0, "new_empty": 0, "new_ones": 1}.get(call.kind, call.argument("fill_value"))
    return [retarget(call, aten.full.default, out.shape, value, dtype=getattr(torch, out.dtype), device=CPU)]


def _add_number(call: CapturedCall, capture: Capture) -> list[CapturedCall]:
    """Makes a number that is added to a scalar a constant tensor: an addend that only one part of a sum may add.

    Calls in half precision stay as they are: torch adds the number in float32 there.
    """
    out, other, alpha = capture.tensors[call.outputs[0]], call.argument("other"), call.argument("alpha")
    if out.shape or out.dtype not in ("float32", "float64") or isinstance(other, Ref):
        return [call]
    is_reversed = call.kind == "rsub"  # other - alpha * x

    def rule(x: Tensor, *_: Any, **__: Any) -> Any:
        scaled = other if is_reversed else other * alpha
        number = aten.full.default((), scaled, dtype=getattr(torch, out.dtype), device=CPU)
        if is_reversed:
            return aten.sub.Tensor(number, x, alpha=alpha)
        return getattr(aten, call.kind).Tensor(x, number)

    return inline(rule, call, capture)


def _mean_loss(call: CapturedCall, capture: Capture) -> list[CapturedCall]:
    """An elementwise loss with `reduction="mean"` is its sum over the number of elements."""
    if call.argument("reduction") != MEAN:
        return [call]

    def rule(x: Tensor, target: Tensor, *rest: Any, **words: Any) -> Any:
        total = named("total", call.target(x, target, *rest, **words))
        shape = torch.broadcast_shapes(x.shape, target.shape)  # type: ignore[no-untyped-call]
        return total / math.prod(shape)

    return inline(rule, with_arguments(call, reduction=SUM), capture)


def _cross_entropy(call: CapturedCall, capture: Capture) -> list[CapturedCall]:
    """The mean over valid labels is a sum over the count (or the total weight) of all labels that are not ignored."""

    def rule(scores: Tensor, labels: Tensor, weight: Tensor | None, reduction: int, ignored: int, *rest: Any) -> Any:
        total = named("total", call.target(scores, labels, weight, SUM, ignored, *rest))
        if labels.is_floating_point():
            return total / (labels.numel() // labels.shape[1 if labels.dim() > 1 else 0])
        valid = named("valid", labels != ignored)
        if weight is None:
            return total / named("count", valid.sum())
        inside = labels * valid  # an ignored label is no index of `weight`: row 0 is taken, times 0
        return total / named("count", (weight[inside] * valid).sum())

    return inline(rule, call, capture) if call.argument("reduction") == MEAN else [with_arguments(call)]


def _batch_norm(call: CapturedCall, capture: Capture) -> list[CapturedCall]:
    """A batch norm in the form that updates running statistics in place, as the program calls it."""
    mean, variance = call.argument("running_mean"), call.argument("running_var")
    training = call.argument("training") if call.kind != "_native_batch_norm_legit_no_training" else False
    for statistics in (mean, variance):
        if training and statistics is not None:
            capture.updates.pop(statistics.value, None)
    x, weight, bias, momentum, eps = (call.argument(n) for n in ("input", "weight", "bias", "momentum", "eps"))
    made = retarget(call, aten.batch_norm.default, x, weight, bias, mean, variance, training, momentum, eps, False)
    return [replace(made, outputs=call.outputs[:1])]


def _ctc_loss(call: CapturedCall, capture: Capture) -> list[CapturedCall]:
    """Makes lengths tensors, which split with the batch. The mean divides each loss by its target's length, and their
    sum by the number of sequences."""
    ranks = [len(capture.tensors[call.argument(n).value].shape) for n in ("log_probs", "targets")]
    if ranks != [3, 2]:
        return [call]
    lengths = {n: call.argument(n) for n in ("input_lengths", "target_lengths")}
    for at, (parameter, given) in enumerate(lengths.items()):
        if not isinstance(given, Ref):
            name = temporary(f"{call.name}_lengths{at}", capture, TensorType((len(given),), "int64"))
            capture.origins[name], capture.constants[name] = Origin.CONSTANT, torch.tensor(given)
            lengths[parameter] = Ref(name)
    call = replace(with_arguments(call, **lengths), kind="ctc_loss", target=aten.ctc_loss.Tensor)

    def rule(scores: Tensor, targets: Tensor, given: Tensor, wanted: Tensor, blank: int, _: int, zero: bool) -> Any:
        losses = named("losses", aten.ctc_loss.Tensor(scores, targets, given, wanted, blank, 0, zero))
        return (losses / wanted.clamp_min(1)).sum() / scores.shape[1]

    return inline(rule, call, capture) if call.argument("reduction") == MEAN else [call]


def _embedding_bag(call: CapturedCall, capture: Capture) -> list[CapturedCall]:
    """Bags of one size are an embedding and a reduction, which split by bags; other calls stay as they are. The call
    that torch takes for a table without a gradient has none, though the table may be an activation."""
    call = replace(call, kind="_embedding_bag", target=aten._embedding_bag.default)
    ids, offsets = (call.argument(n).value for n in ("indices", "offsets"))
    count, words = (capture.tensors[value].shape[0] for value in (offsets, ids))
    bags = next((c for c in capture.calls if offsets in c.outputs), None)
    is_even = bags is not None and bags.kind == "arange" and count and bags.args == (0, words, words // count)
    others = (call.argument("scale_grad_by_freq"), call.argument("include_last_offset"))
    if not is_even or any(others) or call.argument("padding_idx") >= 0:
        return [call]

    def rule(
        weight: Tensor, ids: Tensor, _: Any, __: Any, mode: int, sparse: bool, scale: Tensor | None, *rest: Any
    ) -> Any:
        bags = ids.reshape(count, words // count)
        rows = aten.embedding.default(weight, bags, *_sparse(sparse))
        if scale is not None:
            scale = scale.reshape(*bags.shape, 1)
            rows = rows * scale
        if mode == 2:  # the largest; 0 is the sum, 1 the mean
            return rows.max(1)
        total = rows.sum(1)
        return total / bags.shape[1] if mode == 1 else total

    return inline(rule, call, capture)


def _put(call: CapturedCall, capture: Capture) -> list[CapturedCall]:
    """A write of one value by a mask becomes `where`; a write by other indices may become a scatter."""

    def rule(x: Tensor, places: tuple[Tensor | None, ...], value: Tensor, accumulate: bool = False) -> Any:
        at = places[0] if len(places) == 1 else None
        if at is None or at.dtype != torch.bool or value.dim() or accumulate:
            return NotImplemented
        mask = at.reshape(*at.shape, *[1] * (x.dim() - at.dim()))
        return torch.where(mask, value, x)

    calls = inline(rule, call, capture)
    return aligned_index_put(call, capture) if calls == [call] else calls


REWRITES: dict[str, Rewrite] = {
    **dict.fromkeys(REGROUPINGS, _reshape),
    **dict.fromkeys(LOSSES, _mean_loss),
    **dict.fromkeys(("cross_entropy_loss", "nll_loss_nd"), _cross_entropy),
    **dict.fromkeys([f"_native_batch_norm_legit{form}" for form in ("", "_functional", "_no_training")], _batch_norm),
    **dict.fromkeys(("add", "sub", "rsub"), _add_number),
    **dict.fromkeys(("new_zeros", "new_ones", "new_full", "new_empty"), _filled),
    "index": aligned_index,
    "index_put": _put,
    "unsafe_split": _becomes(aten.split.Tensor),  # no captured call changes the parts in place
    "_conj": _becomes(aten.conj_physical.default),  # torch only marks a view, a program computes the conjugate
    "_neg_view": _becomes(aten.neg.default),
    **dict.fromkeys(("_embedding_bag", "_embedding_bag_forward_only"), _embedding_bag),
    "ctc_loss": _ctc_loss,
}
