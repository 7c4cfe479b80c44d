"""What autograd keeps that depends on the arguments: means, masks, indices, copies in the order that a kernel wants.

Each function answers for one family of operators, as the CPU's kernels of torch 2.13 do; where a GPU's are known to
keep other things, it says so.
"""

import math
from collections.abc import Callable, Sequence

import torch

from ssdsl.model.graph import Operand
from ssdsl.model.kept import Axes, Extra, Reader, Saved
from ssdsl.model.storage import empty, memory_of, results_of

HALVES = ("bfloat16", "float16")  # some kernels compute on copies in float32


def extra(what: str, axes: Axes, dtype: str, count: int = 1) -> Saved:
    return Saved(extras=(Extra(what, axes, dtype, count),))


def composite(row: str) -> Callable[[Reader], Saved]:
    """A row of words for an operator that torch defines by others, which may get copies of its operands."""

    def keep(reader: Reader) -> Saved:
        found, (own, sizes) = reader.named(row), _measured(reader)
        result = Saved(tuple(v for v in found.inputs if v in own))
        for value in (v for v in found.inputs if v not in own):
            operand = next(o for o in reader.operator.inputs if o.value == value)
            axes, full = operand.axes, (*reader.operator.outputs[0].axes[:-2], *operand.axes[-2:])
            if _elements(reader, full) in sizes:  # broadcast over the batch
                axes = full
            result += extra("copy", axes, reader.graph.values[value].dtype)
        return result

    return keep


def _elements(reader: Reader, axes: Axes) -> int:
    return math.prod(reader.operator.dims[d].size for axis in axes for d in axis)


def _measured(reader: Reader) -> tuple[set[str], set[int]]:
    """The operands that a composite operator keeps in their own memory, and the sizes in elements of what else it does.

    Which it copies depends on strides, so torch itself is asked, with tensors without numbers.
    """
    values = {o.value: reader.graph.values[o.value] for o in reader.operator.inputs}
    tensors = {
        n: empty(v, reader.places[n].strides).requires_grad_(v.differentiable and v.dtype.startswith(("float", "bf")))
        for n, v in values.items()
    }
    names = {memory_of(t): n for n, t in tensors.items()}
    kept: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.detach()), lambda _: torch.empty(0)):
        results_of(reader.operator, tensors)
    own = {names[memory_of(t)] for t in kept if memory_of(t) in names}
    return own, {t.numel() for t in kept if memory_of(t) not in names}


def einsum(reader: Reader) -> Saved:
    """Operands are multiplied from the left, two at a time; what a product needs is in its order or copied to it."""
    operands, (own, _) = reader.operator.inputs, _measured(reader)
    learns = [reader.graph.values[o.value].differentiable for o in operands]
    dtype = reader.graph.values[operands[0].value].dtype
    result = Saved()

    def keep(at: int) -> Saved:
        value, others = operands[at].value, (*operands[:at], *operands[at + 1 :], *reader.operator.outputs)
        copied = _common(operands[at : at + 1], others)  # the other axes are summed first
        return Saved((value,)) if value in own else extra("copy", copied, dtype)

    for at in range(1, len(operands)):
        before, later = operands[:at], (*operands[at + 1 :], *reader.operator.outputs)
        if learns[at]:
            result += keep(0) if at == 1 else extra("product", _common(before, (*later, operands[at])), dtype)
        if any(learns[:at]):
            result += keep(at)
    return result


def _common(before: Sequence[Operand], later: Sequence[Operand]) -> Axes:
    """The axes of a product that are still needed."""
    needed = {a for o in later for a in o.axes}
    return tuple(dict.fromkeys(a for o in before for a in o.axes if a in needed))


def attention(reader: Reader) -> Saved:
    """The fused kernel keeps its operands, its output and one number a row of scores; the other one the scores.

    On a GPU the fused kernels also take dropout, for which they keep the state of their random numbers (two numbers),
    and masks that require a gradient.
    """
    query, key, value = (reader.operand(n) for n in ("query", "key", "value"))
    scores = (*query.axes[:-1], key.axes[-2])
    if _is_fused(reader):
        found = reader.named("query key value result")
        for mask in reader.operands("attn_mask"):
            is_bool = reader.graph.values[mask.value].dtype == "bool"
            found += (
                extra("mask as numbers", mask.axes, reader.value("query").dtype) if is_bool else Saved((mask.value,))
            )
        return found + extra("logsumexp", query.axes[:-1], "float32")
    return _attention_of_parts(reader, query.axes, key.axes, value.axes, scores)


def _is_fused(reader: Reader) -> bool:
    """Whether the CPU's fused kernel takes a call, after torch's `use_flash_attention_cpp`."""
    query, key, value = (reader.value(n) for n in ("query", "key", "value"))
    masks = [reader.graph.values[o.value] for o in reader.operands("attn_mask")]
    ends = [reader.places[v.name].strides[-1] for v in (query, key, value)]
    return (
        len(query.shape) == 4
        and query.shape[-1] == key.shape[-1] == value.shape[-1]
        and query.shape[0] == key.shape[0] == value.shape[0]
        and reader.split.isdisjoint(reader.operand("value").axes[-1])  # or they differ on the parts
        and not reader.argument("dropout_p")
        and all(len(m.shape) in (2, 4) and not m.differentiable for m in masks)
        and set(ends) == {1}
    )


def _attention_of_parts(reader: Reader, query: Axes, key: Axes, value: Axes, scores: Axes) -> Saved:
    """Scaled queries and keys, the softmax, the values; with dropout also its factors and what it makes."""
    is_half = reader.value("query").dtype in HALVES
    dtype = "float32" if is_half else reader.value("query").dtype
    scored = any(reader.learns(n) for n in ("query", "key", "attn_mask"))
    grouped = bool(reader.argument("enable_gqa")) and reader.value("query").shape[-3] != reader.value("key").shape[-3]
    heads = query[:-2] if grouped else None
    result = Saved()
    if reader.learns("key"):
        result += extra("scaled query", query, dtype)
    if reader.learns("query"):
        result += extra("scaled key", (*(heads or key[:-2]), *key[-2:]), dtype)
    drops = bool(reader.argument("dropout_p"))
    if scored or not drops:
        result += extra("softmax", scores, dtype)
    if scored and drops:
        result += extra("dropout's factors", scores, dtype)
    if reader.learns("value") and drops:
        result += extra("softmax after dropout", scores, dtype)
    if scored:
        copied = is_half or grouped or not _merges(reader, "value")
        result += (
            extra("copy of values", (*(heads or value[:-2]), *value[-2:]), dtype) if copied else reader.named("value")
        )
    return result


def _merges(reader: Reader, name: str) -> bool:
    """Whether the batch axes of an operand can be seen as one."""
    value = reader.value(name)
    tensor = empty(value, reader.places[value.name].strides)
    return memory_of(tensor.flatten(0, -3)) == memory_of(tensor) if len(value.shape) > 3 else True


def log_sigmoid(reader: Reader) -> Saved:
    """A GPU's kernel keeps no buffer."""
    operand = reader.operand("self")
    return reader.named("self") + extra("buffer", operand.axes, reader.value("self").dtype)


def l1_loss(reader: Reader) -> Saved:
    return extra("difference", _broadcast(reader), reader.value("self").dtype)


def kl_div(reader: Reader) -> Saved:
    dtype = reader.value("self").dtype
    if not reader.argument("log_target"):
        return reader.named("target self/target")
    result = extra("target's exponential", reader.operand("target").axes, dtype)
    return result + extra("difference", _broadcast(reader), dtype) if reader.learns("target") else result


def _broadcast(reader: Reader) -> Axes:
    """The axes of what an operator's first two operands broadcast to."""
    a, b = (o.axes for o in reader.operator.inputs[:2])
    rank = max(len(a), len(b))
    left, right = ((((),) * (rank - len(axes))) + axes for axes in (a, b))
    return tuple(x or y for x, y in zip(left, right, strict=True))


def cross_entropy(reader: Reader) -> Saved:
    """The log-softmax, and the sum of the labels' weights; a split vocabulary has a kernel of its own."""
    given, dtype, target = reader.operand("self"), reader.value("self").dtype, reader.operand("target")
    if any(reader.operator.dims[d].combined for d in reader.split):
        masks = extra("labels outside and ignored", target.axes, "bool", 2)
        return extra("softmax", given.axes, dtype) + extra("local labels", target.axes, "int64") + masks
    result = extra("log-softmax", given.axes, dtype)
    smooth = bool(reader.argument("label_smoothing"))
    if reader.value("target").dtype.startswith(("float", "bf")):
        smoothed = extra("smoothed target", target.axes, dtype)
        return result + reader.named("weight") + (smoothed if smooth else reader.named("target"))
    if smooth:
        result += extra("ignored labels", target.axes, "bool")
    return result + reader.named("target weight") + extra("total weight", (), dtype)


def nll_loss(reader: Reader) -> Saved:
    return reader.named("self target weight") + extra("total weight", (), reader.value("self").dtype)


def embedding(reader: Reader) -> Saved:
    """A split vocabulary looks up the words that it has: their local numbers, and which are elsewhere."""
    rows, indices = reader.operands("weight")[0].axes[0], reader.operand("indices")
    if not reader.split.isdisjoint(rows):
        return extra("local words", indices.axes, reader.value("indices").dtype) + extra(
            "outside", indices.axes, "bool"
        )
    return reader.named("indices")


def layer_norm(reader: Reader) -> Saved:
    """Mean and inverse deviation of each row; a GPU keeps them in float32."""
    given = reader.operand("input")
    rows = given.axes[: -len(reader.argument("normalized_shape"))]
    return reader.named("input weight bias") + extra("mean and deviation", rows, reader.value("input").dtype, 2)


def rms_norm(reader: Reader) -> Saved:
    """Several operators on a CPU; a GPU's kernel keeps its operands and the inverse root of each row."""
    given, dtype = reader.operand("input"), reader.value("input").dtype
    rows = given.axes[: -len(reader.argument("normalized_shape"))]
    result = reader.named("weight/input") + reader.named("" if dtype in HALVES else "input/input")
    if reader.learns("input") and dtype in HALVES:
        result += extra("input as float32", given.axes, "float32")
    if reader.learns("input"):
        result += extra("inverse root", rows, "float32" if dtype in HALVES else dtype)
    if reader.learns("weight"):
        result += extra("normal input", given.axes, "float32" if dtype in HALVES else dtype)
    return result


def group_norm(reader: Reader) -> Saved:
    found = composite("input weight")(reader)
    batch = reader.operand("input").axes[:1]
    return found + extra("mean and deviation", batch, reader.value("input").dtype, 2 * reader.argument("num_groups"))


def instance_norm(reader: Reader) -> Saved:
    """A batch norm of every image's channels, as if they were all different: its weight is repeated."""
    rows, dtype = reader.operand("input").axes[:2], reader.value("input").dtype
    count = 3 if reader.operands("weight") else 2
    return composite("input")(reader) + extra("mean, deviation, weight", rows, dtype, count)


def batch_norm(reader: Reader) -> Saved:
    """Statistics of each channel, in training; a split batch has a kernel of its own."""
    given, dtype = reader.operand("input"), reader.value("input").dtype
    channels = given.axes[1:2]
    if any(reader.operator.dims[d].combined for d in reader.split):
        rows = (
            extra("deviation", channels, dtype)
            if reader.operands("weight")
            else extra("deviation, ones", channels, dtype, 2)
        )
        return reader.named("weight") + extra("normal input", given.axes, dtype) + rows
    found = composite("input")(reader) + reader.named("weight running_mean running_var")
    return found + extra("mean and deviation", channels, dtype, 2) if reader.argument("training") else found


def max_pool(reader: Reader) -> Saved:
    return reader.named("self") + extra("indices", reader.operator.outputs[0].axes, "int64")


def pad(reader: Reader) -> Saved:
    """Padding that mirrors what is inside needs to know how much that is."""
    return reader.named("self" if reader.argument("mode") in ("reflect", "replicate") else "")
