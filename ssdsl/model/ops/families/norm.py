"""The rows of normalisations: dimensions that statistics reduce are whole, or a kernel combines their parts."""

from ssdsl.model.dims.signature import Axis, Letter, Signature, axes, free, signature, whole
from ssdsl.model.ops.op import Op, PartKernel, Rule, call_of
from ssdsl.model.ops.reader import TypedCall


def layer_norm(call: TypedCall) -> Signature:
    """Normalises over the last axes; its weights have only these. Split along them, the kernel reduces the statistics
    of each row over the parts."""
    count = len(call.args[1])
    normal: list[Axis] = [(Letter("hidden", combined=True),)] if count == 1 else _combined(count, "n")
    names = [*axes(call.rank - count), *normal]
    return signature([names, *[normal] * (len(call.inputs) - 1)], [names])


def group_norm(call: TypedCall) -> Signature:
    """Statistics of each example's groups of channels: split in space, the kernel reduces them over the parts."""
    names = [free("b"), whole("channels"), *_combined(call.rank - 2, "d")]
    return signature([names, *[[whole("channels")]] * (len(call.inputs) - 1)], [names])


def instance_norm(call: TypedCall) -> Signature:
    """Statistics of each example's channels."""
    names = [free("b"), free("channels"), *_combined(call.rank - 2, "d")]
    return signature([names, *[[names[1]]] * (len(call.inputs) - 1)], [names])


def batch_norm(call: TypedCall) -> Signature:
    """Statistics over all but the channels: split along the batch or in space, the kernel reduces them over the
    parts."""
    names = [free("b"), free("channels"), *axes(call.rank - 2)]
    if call.argument("training"):
        names = [*_combined(1, "b"), free("channels"), *_combined(call.rank - 2, "d")]
    return signature([names, *[[free("channels")]] * (len(call.inputs) - 1)], [names])


def _combined(count: int, word: str) -> list[Axis]:
    """`count` axes whose parts a kernel combines."""
    return [(Letter(f"{word}{i}", combined=True),) for i in range(count)]


def _op(kind: str, rule: Rule, words: str, text: str | None = None) -> Op:
    """The row of a norm. Its kernel gets these operands, the number of all elements of a statistic, and the group."""
    kernel = PartKernel(("input", None), call_of(f"{kind}_parts", f"input {words} count group"))
    return Op(f"aten::{kind}", rule, kernel=kernel, text=text)


LAYER_NORM = call_of("F.layer_norm", "input normalized_shape weight bias | eps")
OPS = (
    _op("layer_norm", layer_norm, "normalized_shape weight bias | eps", LAYER_NORM),
    _op("rms_norm", layer_norm, "normalized_shape weight | eps"),
    _op("group_norm", group_norm, "num_groups weight bias | eps"),
    _op("instance_norm", instance_norm, "weight bias | eps"),
    _op("batch_norm", batch_norm, "weight bias running_mean running_var | momentum eps"),
)
