"""Normalisation: what statistics are taken over is whole, or combined by a kernel."""

from ssdsl.model.ops.op import Collective, Op, PartKernel
from ssdsl.model.ops.saved_by_kernels import (
    batch_norm_part_saves,
    batch_norm_saves,
    instance_norm_saves,
    layer_norm_saves,
    rms_norm_saves,
)
from ssdsl.model.ops.typed_call import TypedCall
from ssdsl.model.signature import Letter, Signature, axes, free, kept_whole, signature, whole, whole_axes


def layer_norm(call: TypedCall) -> Signature:
    """Normalises over the last axes; its weights carry only these."""
    count = len(call.args[1])
    normal = [whole("hidden")] if count == 1 else whole_axes(count, "n")
    names = [*axes(call.rank - count), *normal]
    return signature([names, *[normal] * (len(call.inputs) - 1)], [names])


def group_norm(call: TypedCall) -> Signature:
    names = [free("b"), whole("channels"), *whole_axes(call.rank - 2, "d")]
    return signature([names, *[[whole("channels")]] * (len(call.inputs) - 1)], [names])


def batch_norm(call: TypedCall) -> Signature:
    """Statistics over all but the channels: split along the batch, the kernel reduces them over the parts."""
    batch, space = free("b"), axes(call.rank - 2)
    if call.argument("training"):
        batch, space = (Letter("b", combined=True),), [kept_whole(a) for a in space]
    names = [batch, free("channels"), *space]
    return signature([names, *[[free("channels")]] * (len(call.inputs) - 1)], [names])


BATCH_NORM_PARTS = PartKernel(
    axis=("input", 0),
    call="batch_norm_parts({input}, {weight}, {bias}, {running_mean}, {running_var}, {momentum}, {eps}, {group})",
    forward=(Collective(1), Collective(1)),  # of each channel the mean, then the variance
    backward=(Collective(2),),
    saved=batch_norm_part_saves,
)

OPS = (
    Op(
        "aten::layer_norm",
        layer_norm,
        saved=layer_norm_saves,
        text="F.layer_norm({input}, {normalized_shape}, {weight}, {bias}, {eps})",
    ),
    Op("aten::rms_norm", layer_norm, saved=rms_norm_saves),
    Op("aten::group_norm", group_norm),
    Op("aten::instance_norm", group_norm, saved=instance_norm_saves),
    Op("aten::batch_norm", batch_norm, kernel=BATCH_NORM_PARTS, saved=batch_norm_saves),
)
