"""Attention and the softmax in it."""

import math

from ssdsl.model.graph import Ref
from ssdsl.model.ops.op import Collective, Op, PartKernel
from ssdsl.model.ops.saved_by_kernels import attention_saves
from ssdsl.model.ops.typed_call import TypedCall
from ssdsl.model.signature import ONE, Axis, Signature, axes, combined, free, signature, whole, windowed
from ssdsl.model.window import Prefix


def attention(call: TypedCall) -> Signature:
    """softmax(q k^T) v over any batch axes, the last of them the heads. Of causal attention a run of queries needs the
    keys up to its end; keys are combined by no kernel yet."""
    q, k = call.shapes[:2]
    batch: list[Axis] = [*axes(len(q) - 3), free("heads")] if len(q) > 2 else []
    query, keys = free("s"), whole("t")
    if call.argument("is_causal"):
        is_square = q[-2] == k[-2]  # rows and keys are counted from the same position
        query, keys = (query, windowed("t", "s", Prefix(k[-2]))) if is_square else (whole("s"), keys)
    key_batch = [ONE if k[i] == 1 != q[i] else x for i, x in enumerate(batch)]
    if call.argument("enable_gqa") and k[-3] != q[-3]:  # queries in groups, each with one key: splits by groups
        batch = [*batch[:-1], (*free("heads"), *whole("in_group", q[-3] // k[-3]))]
        key_batch[-1] = free("heads")
    inside = whole("head_dim")
    rows = [[*batch, query, inside], [*key_batch, keys, inside], [*key_batch, keys, free("value_dim")]]
    if isinstance(call.argument("attn_mask"), Ref):
        shape, full = call.shapes[3], [*batch, query, keys]
        rows.append([ONE if n == 1 else x for n, x in zip(shape, full[len(full) - len(shape) :], strict=True)])
    return signature(rows, [[*batch, query, free("value_dim")]])


def softmax(call: TypedCall) -> Signature:
    """Normalises over one axis, whose parts a kernel combines; of attention scores (four axes), the second is the
    heads."""
    names = axes(call.rank)
    if call.rank == 4:
        names[1] = free("heads")
    names[int(call.args[1]) % call.rank] = combined("over")
    return signature([names], [names])


def flops_of_attention(call: TypedCall) -> int:
    """Scores, then their product with the values; masked scores count fully."""
    q, k, v = call.shapes[:3]
    return 2 * math.prod(q[:-1]) * k[-2] * (q[-1] + v[-1])


def _softmax_parts(function: str) -> PartKernel:
    return PartKernel(
        axis=("self", "dim"),
        call=f"{function}({{self}}, {{dim}}, {{group}}, {{dtype}})",
        forward=(
            Collective(1, width=4),
            Collective(1, width=4),
        ),  # of each row the largest score; the exponentials' sum
        backward=(Collective(1, width=4),),
        saved="result",
    )


OPS = (
    Op(
        "aten::scaled_dot_product_attention",
        attention,
        windows="causal_attention_part({query}, {key}, {value}, {scale}, {enable_gqa}, {parts})",
        contraction=True,
        flops=flops_of_attention,
        backward_factor=1.25,  # five products for the forward's two: scores are computed again (FlashAttention, 2022)
        saved=attention_saves,
    ),
    Op("aten::softmax", softmax, kernel=_softmax_parts("softmax_parts"), text=".softmax"),
    Op("aten::log_softmax", softmax, kernel=_softmax_parts("log_softmax_parts")),
)
