"""Tensors that autograd saves where meta tensors do not show it: kernels that only a CPU has, and kernels of parts.

Each function gives them for one operator in its local sizes, as the CPU kernels of torch 2.11 to 2.14 save them.
"""

import functools
import math
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version

from ssdsl.model.graph import Operator, Value
from ssdsl.model.memory.saved_tensors import Saved, extra
from ssdsl.model.memory.storage import is_one_axis
from ssdsl.model.ops.reader import Reader

HALVES = ("bfloat16", "float16")  # some kernels compute on copies in float32
Shape = tuple[int, ...]


def _shape(reader: Reader, name: str) -> Shape:
    return reader.shape(reader.operand(name).axes)


def attention_saves(reader: Reader) -> Saved:
    """The fused kernel keeps its operands, its output and one number for each row of scores; the other one the scores.

    On a GPU the fused kernels also take masks that require a gradient.
    """
    query, key, value = (_shape(reader, n) for n in ("query", "key", "value"))
    if not _is_fused(reader, query, key, value):
        return _attention_of_parts(reader, query, key, value)
    found = reader.named("query key value result")
    for mask in reader.operands("attn_mask"):
        is_bool = reader.graph.values[mask.value].dtype == "bool"
        as_numbers = extra("mask as numbers", reader.shape(mask.axes), reader.value("query").dtype)
        found += as_numbers if is_bool else Saved((mask.value,))
    return found + extra("logsumexp", query[:-1], "float32")


def _is_fused(reader: Reader, query: Shape, key: Shape, value: Shape) -> bool:
    masks = [reader.graph.values[o.value] for o in reader.operands("attn_mask")]
    ends = [reader.graph.storages[reader.operand(n).value].strides[-1] for n in ("query", "key", "value")]
    return is_fused_attention((query, key, value), ends, masks)


def is_fused_attention(shapes: Sequence[Sequence[int]], ends: Iterable[int], masks: Iterable[Value]) -> bool:
    """Whether the CPU's fused kernel takes queries, keys and values of these shapes and last strides, after torch's
    `use_flash_attention_cpp`."""
    query, key, value = shapes
    is_unbatched = len(query) == 3 and _fuses_unbatched()
    ranks = (2, 3, 4) if is_unbatched else (2, 4)
    return (
        (is_unbatched or (len(query) == 4 and query[0] == key[0] == value[0]))
        and query[-1] == key[-1] == value[-1]
        and all(len(m.shape) in ranks and not m.differentiable for m in masks)
        and set(ends) == {1}
    )


@functools.cache
def _fuses_unbatched() -> bool:
    """Whether torch adds a batch axis to operands of three axes, so that its fused kernel takes them: from 2.14 on. A
    graph that is looked at where torch is not installed counts as one of today."""
    try:
        major, minor, *_ = version("torch").split(".")
    except PackageNotFoundError:
        return True
    return (int(major), int(minor)) >= (2, 14)


def _attention_of_parts(reader: Reader, query: Shape, key: Shape, value: Shape) -> Saved:
    """Attention without a fused kernel saves scaled queries and keys, the softmax and the values."""
    is_half = reader.value("query").dtype in HALVES
    dtype = "float32" if is_half else reader.value("query").dtype
    scores = (*query[:-1], key[-2])
    scored = any(reader.requires_grad(n) for n in ("query", "key", "attn_mask"))
    grouped = bool(reader.argument("enable_gqa")) and query[-3] != key[-3]
    heads = query[:-2] if grouped else None
    result = Saved()
    if reader.requires_grad("key"):
        result += extra("scaled query", query, dtype)
    if reader.requires_grad("query"):
        result += extra("scaled key", (*(heads or key[:-2]), *key[-2:]), dtype)
    result += extra("softmax", scores, dtype)
    if scored and (is_half or grouped or not _merges(reader, "value")):
        result += extra("copy of values", (*(heads or value[:-2]), *value[-2:]), dtype)
    elif scored:
        result += reader.named("value")
    return result


def _merges(reader: Reader, name: str) -> bool:
    """Whether the batch axes of an operand can be viewed as one."""
    shape = _shape(reader, name)
    return len(shape) < 4 or is_one_axis(shape[:-2], reader.strides(reader.operand(name))[:-2])


def dropout_saves(reader: Reader) -> Saved:
    """The mask, a byte for each element."""
    return extra("mask", _shape(reader, "x"), "bool") if reader.requires_grad("x") else Saved()


def kl_div_saves(reader: Reader) -> Saved:
    dtype = reader.value("self").dtype
    if not reader.argument("log_target"):
        return reader.named("target self/target")
    result = extra("target's exponential", _shape(reader, "target"), dtype)
    full = broadcast_shape(_shape(reader, "self"), _shape(reader, "target"))
    return result + extra("difference", full, dtype) if reader.requires_grad("target") else result


def broadcast_shape(a: Shape, b: Shape) -> Shape:
    rank = max(len(a), len(b))
    left, right = ((1,) * (rank - len(s)) + s for s in (a, b))
    return tuple(y if x == 1 else x for x, y in zip(left, right, strict=True))


def cross_entropy_saves(reader: Reader) -> Saved:
    """The log-softmax, and the sum of the labels' weights."""
    dtype, target = reader.value("self").dtype, _shape(reader, "target")
    result = extra("log-softmax", _shape(reader, "self"), dtype)
    smooth = bool(reader.argument("label_smoothing"))
    if reader.value("target").dtype.startswith(("float", "bf")):
        smoothed = extra("smoothed target", target, dtype)
        return result + reader.named("weight") + (smoothed if smooth else reader.named("target/self"))
    if smooth:
        result += extra("ignored labels", target, "bool")
    return result + reader.named("target weight") + extra("total weight", (), dtype)


def has_chances(operator: Operator) -> bool:
    """Whether a cross entropy's target is a distribution over the classes: it has as many axes as the scores."""
    scores, target = operator.inputs[:2]
    return len(scores.axes) == len(target.axes)


def cross_entropy_part_saves(reader: Reader) -> Saved:
    scores, target, dtype = _shape(reader, "self"), _shape(reader, "target"), _sums(reader, "self")
    smooth = bool(reader.argument("label_smoothing"))
    if has_chances(reader.operator):
        result = extra("log-softmax", scores, reader.value("self").dtype)
        if reader.requires_grad("self"):
            result += (
                extra("smoothed target", scores, reader.value("target").dtype) if smooth else reader.named("target")
            )
        return result + reader.named("weight")
    result = extra("softmax", scores, reader.value("self").dtype) + extra("local labels", target, "int64")
    result += extra("what each label counts", target, dtype, 2)
    return (result + extra("ignored labels", target, "bool") + reader.named("weight")) if smooth else result


def nll_part_saves(reader: Reader) -> Saved:
    target = _shape(reader, "target")
    result = extra("local labels", target, "int64") + extra("labels elsewhere", target, "bool")
    picked = extra("weights of labels", target, reader.value("self").dtype)
    return result + picked if reader.operands("weight") else result


def gather_part_saves(reader: Reader) -> Saved:
    """The local indices of the picked elements, and a mask of those that other parts have."""
    index = _shape(reader, "index")
    return extra("local index", index, reader.value("index").dtype) + extra("outside", index, "bool")


def index_part_saves(reader: Reader) -> Saved:
    """The local index along each axis, and a mask of what other parts have, of the shape that the indices have
    together."""
    found = [(reader.shape(o.axes), reader.graph.values[o.value].dtype) for o in reader.operands("indices")]
    together = functools.reduce(broadcast_shape, (shape for shape, _ in found))
    own = (extra(f"local index {number}", *index) for number, index in enumerate(found))
    return sum(own, start=extra("outside", together, "bool"))


def write_part_saves(reader: Reader) -> Saved:
    """The local indices of what is written, and a mask of what falls into other parts."""
    added = next(word for word in ("src", "source") if reader.operands(word))
    index = _shape(reader, "index")
    found = extra("local index", index, "int64") + extra("outside", index, "bool")
    return found if reader.requires_grad(added) else Saved()


def reduce_part_saves(reader: Reader) -> Saved:
    """The operand and the result, each with one more position, the local indices, what is reduced, and a mask of what
    falls into other parts."""
    if not (reader.requires_grad("self") or reader.requires_grad("src")):
        return Saved()
    dim, dtype = int(reader.argument("dim")), reader.value("self").dtype
    index, longer = _shape(reader, "index"), [*_shape(reader, "self")]
    longer[dim] += 1
    found = extra("operand and result", longer, dtype, 2) + extra("local index", index, "int64")
    found += extra("what is reduced", index, dtype)
    return found + extra("outside", index, "bool") if reader.requires_grad("src") else found


def cumprod_part_saves(reader: Reader) -> Saved:
    """The operand, the part's own running product (or logarithm of a running sum), the totals of all parts, and that of
    the parts before it."""
    shape, dtype = _shape(reader, "self"), _sums(reader, "self")
    rows = _rows(reader, shape)
    kept = reader.named("self") if reader.value("self").dtype == dtype else extra("operand", shape, dtype)
    return kept + extra("of the part", shape, dtype) + extra("of all parts", rows, dtype, _parts(reader) + 1)


def topk_part_saves(reader: Reader) -> Saved:
    """The places of the part's largest elements, those of all parts, and the choice among them."""
    found = reader.shape(reader.operator.outputs[0].axes)
    result = extra("places in the part", found, "int64") + extra("chosen", found, "int64")
    return result + extra("of all parts", found, reader.value("self").dtype, _parts(reader))


def _parts(reader: Reader) -> int:
    """The number of parts along the axis that `dim` names."""
    (operand,) = reader.operands("self")
    dims = operand.axes[int(reader.argument("dim"))] if operand.axes else ()
    return math.prod(-(-reader.operator.dims[d].size // reader.sizes[d]) for d in dims)


def _rows(reader: Reader, shape: Shape) -> Shape:
    """A shape without the axis that `dim` names."""
    dim = int(reader.argument("dim")) % max(1, len(shape))
    return (*shape[:dim], *shape[dim + 1 :])


def _sums(reader: Reader, name: str) -> str:
    """The dtype in which a kernel of parts adds up."""
    dtype = reader.value(name).dtype
    return "float32" if dtype in HALVES else dtype


def embedding_part_saves(reader: Reader) -> Saved:
    """The words' local indices, and a mask of those that other parts have."""
    words, dtype = _shape(reader, "indices"), reader.value("indices").dtype
    return extra("local words", words, dtype) + extra("outside", words, "bool")


def layer_norm_saves(reader: Reader) -> Saved:
    """Mean and inverse deviation of each row in the input's dtype; a GPU, and a meta tensor, has them in float32."""
    shape = _shape(reader, "input")
    rows = shape[: -len(reader.argument("normalized_shape"))]
    return reader.named("input weight bias") + extra("mean and deviation", rows, reader.value("input").dtype, 2)


def instance_norm_saves(reader: Reader) -> Saved:
    """It is a batch norm with a channel for each image and channel: the weight is repeated for each image."""
    shape, dtype = _shape(reader, "input"), reader.value("input").dtype
    in_place = is_one_axis(shape[:2], reader.strides(reader.operand("input"))[:2])
    kept = reader.named("input") if in_place else extra("copy of input", shape, dtype)
    return kept + extra("mean, deviation, weight", shape[:2], dtype, 3 if reader.operands("weight") else 2)


def rms_norm_saves(reader: Reader) -> Saved:
    """On a CPU it consists of several operators; a GPU's kernel keeps its operands and each row's inverse root."""
    shape, dtype = _shape(reader, "input"), reader.value("input").dtype
    wide = "float32" if dtype in HALVES else dtype
    rows: Sequence[int] = shape[: -len(reader.argument("normalized_shape"))]
    result = reader.named("weight/input") + reader.named("" if dtype in HALVES else "input/input")
    if reader.requires_grad("input") and dtype in HALVES:
        result += extra("input as float32", shape, "float32")
    if reader.requires_grad("input"):
        result += extra("inverse root", rows, wide)
    if reader.requires_grad("weight"):
        result += extra("normal input", shape, wide)
    return result


def batch_norm_saves(reader: Reader) -> Saved:
    """Statistics of each channel, in training."""
    shape, dtype = _shape(reader, "input"), reader.value("input").dtype
    found = reader.named("input weight running_mean running_var")
    return found + extra("mean and deviation", shape[1:2], dtype, 2) if reader.argument("training") else found


def batch_norm_part_saves(reader: Reader) -> Saved:
    return _norm_part_saves(reader, _shape(reader, "input")[1:2])


def group_norm_part_saves(reader: Reader) -> Saved:
    return _norm_part_saves(reader, (_shape(reader, "input")[0], reader.argument("num_groups")))


def instance_norm_part_saves(reader: Reader) -> Saved:
    return _norm_part_saves(reader, _shape(reader, "input")[:2])


def layer_norm_part_saves(reader: Reader) -> Saved:
    shape, normal = _shape(reader, "input"), len(reader.argument("normalized_shape"))
    return _norm_part_saves(reader, shape[:-normal], shape[-normal:])


def _norm_part_saves(reader: Reader, statistics: Sequence[int], weights: Sequence[int] | None = None) -> Saved:
    """The normalised input, the deviations, and the weight, or ones in its place: of the shape `weights`, by default
    one for each channel."""
    shape, dtype = _shape(reader, "input"), reader.value("input").dtype
    ones = [] if reader.operands("weight") else [extra("ones", shape[1:2] if weights is None else weights, dtype)]
    result = reader.named("weight") + extra("normal input", shape, dtype) + extra("deviation", statistics, dtype)
    return sum(ones, result)
