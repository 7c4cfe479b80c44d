"""Tensors that autograd saves of kernels of parts, each for one operator in its local sizes."""

import functools
import math
from collections.abc import Sequence

from ssdsl.model.graph import Operator
from ssdsl.model.memory.saved_tensors import Saved, extra
from ssdsl.model.ops.reader import Reader

HALVES = ("bfloat16", "float16")  # some kernels compute on copies in float32
Shape = tuple[int, ...]


def _shape(reader: Reader, name: str) -> Shape:
    return reader.shape(reader.operand(name).axes)


def broadcast_shape(a: Shape, b: Shape) -> Shape:
    rank = max(len(a), len(b))
    left, right = ((1,) * (rank - len(s)) + s for s in (a, b))
    return tuple(y if x == 1 else x for x, y in zip(left, right, strict=True))


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
