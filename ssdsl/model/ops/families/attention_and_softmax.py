"""The rows of attention and softmax."""

import math

from ssdsl.model.dims.inner_names import PER_GROUP
from ssdsl.model.dims.signature import ONE, Axis, Letter, Signature, Windowed, axes, combined, free, signature, whole
from ssdsl.model.dims.window import Band
from ssdsl.model.graph import Operator, Ref
from ssdsl.model.memory.saved_tensors import Saved, extra
from ssdsl.model.ops.op import Collective, Op, PartKernel, call_of
from ssdsl.model.ops.reader import Reader, TypedCall
from ssdsl.record import replace


def attention(call: TypedCall) -> Signature:
    """softmax(q k^T) v over any batch axes, the last of them the heads.

    A run of queries needs all keys; in causal attention, those up to its end; in a band, those around it. Keys may be
    cut by themselves, or together with the queries.
    """
    q, k = call.shapes[:2]
    batch: list[Axis] = [*axes(len(q) - 3), free("heads")] if len(q) > 2 else []
    query, keys = _sequence(call)
    key_batch = [ONE if k[i] == 1 != q[i] else x for i, x in enumerate(batch)]
    if call.argument("enable_gqa") and k[-3] != q[-3]:  # a group of query heads shares a key head
        batch = [*batch[:-1], (*free("heads"), Letter(PER_GROUP, size=q[-3] // k[-3]))]
        key_batch[-1] = free("heads")
    inside = whole("head_dim")
    rows = [[*batch, query, inside], [*key_batch, keys, inside], [*key_batch, keys, free("value_dim")]]
    if isinstance(call.argument("attn_mask"), Ref):
        shape, full = call.shapes[3], [*batch, query, keys]
        rows.append([ONE if n == 1 else x for n, x in zip(shape, full[len(full) - len(shape) :], strict=True)])
    return signature(rows, [[*batch, query, free("value_dim")]])


def _sequence(call: TypedCall) -> tuple[Axis, Axis]:
    """The axes of queries and of keys."""
    queries, keys = (shape[-2] for shape in call.shapes[:2])
    band = call.argument("band") if call.call.target.name().startswith("ssdsl::") else None
    masked = isinstance(call.argument("attn_mask"), Ref)
    mask = call.shapes[3] if masked else ()
    by_keys_alone = masked and mask[-1] > 1 and (len(mask) < 2 or mask[-2] == 1)  # a ring would pass its columns on
    beside = "s" if queries == keys and not by_keys_alone else ""
    if not call.argument("is_causal") and not band:
        return free("s"), (Letter("t", combined=True, beside=beside),)
    if queries != keys:  # then query i and key i have not the same position
        return whole("s"), whole("t")
    window = Band(keys, *band) if band else Band.prefix(keys)
    return free("s"), (Letter("t", combined=True, window=Windowed("s", window), beside=beside),)


def softmax(call: TypedCall) -> Signature:
    """Normalises over one axis, whose parts a kernel combines. Four axes are attention scores: the second is the
    heads."""
    names = axes(call.rank)
    if call.rank == 4:
        names[1] = free("heads")
    names[int(call.args[1]) % call.rank] = combined("over")
    return signature([names], [names])


def flops_of_attention(call: TypedCall) -> int:
    """FLOPs of the scores and of their product with the values; masked scores count fully."""
    q, k, v = call.shapes[:3]
    return 2 * math.prod(q[:-1]) * k[-2] * (q[-1] + v[-1])


def attention_part_saves(reader: Reader) -> Saved:
    """The operands, the output, and one number for each row of scores."""
    rows = reader.shape(reader.operand("query").axes)[:-1]
    return reader.named("query key value attn_mask result") + extra("logsumexp", rows, "float32")


def _numbers(operator: Operator, operand: int) -> int:
    """The numbers in one key (operand 1), or one value (operand 2)."""
    return math.prod(operator.dims[d].size for d in operator.inputs[operand].axes[-1])


def _keys_merged(operator: Operator, parts: int) -> tuple[Collective, ...]:
    """For each row, the largest logarithm of a part's sum of exponentials; then the weighted output and its weight."""
    return Collective(1, width=4), Collective(_numbers(operator, 2) + 1, width=4)


def _keys_around(operator: Operator, parts: int) -> tuple[Collective, ...]:
    """Each part passes keys and values to the next, until all have seen them: parts - 1 times (ring attention). Heads
    of queries that share a key pass it once."""
    query, key = operator.inputs[:2]
    shared = tuple(d for axis in query.axes[:-1] for d in axis if not key.carries(d))
    numbers = _numbers(operator, 1) + _numbers(operator, 2)
    return (Collective(numbers, "exchange", overlaps=True, lacks=shared, has=key.axes[-2]),) * (parts - 1)


def _keys_around_back(operator: Operator, parts: int) -> tuple[Collective, ...]:
    """The keys and values once more, then as many times their gradients, in float32, which return to their parts."""
    keys = _keys_around(operator, parts)
    return (*keys, *(replace(c, width=4) for c in keys))


WORDS = "query key value attn_mask | is_causal scale regions group queries"
OVER, WITHOUT_DTYPE = "self | dim group dtype", "self | dim group dtype=None"
KEYS = PartKernel(
    axis=("key", -2),
    call=call_of("attention_keys", WORDS),
    forward=_keys_merged,
    backward=(),  # the parts of the queries' gradients add up
    saved=attention_part_saves,
)
RING = PartKernel(
    axis=("key", -2),
    call=call_of("attention_ring", f"{WORDS} merging"),
    forward=_keys_around,
    backward=_keys_around_back,
    saved=attention_part_saves,
)

ATTENTION = Op(
    "aten::scaled_dot_product_attention",
    attention,
    kernel=KEYS,
    ring=RING,
    windows=call_of("causal_attention_part", "query key value | scale enable_gqa parts"),
    contraction=True,
    flops=flops_of_attention,
    factors=3,
    backward_factor=1.25,  # five products in place of four: scores are recomputed (FlashAttention, 2022)
    fused=attention_part_saves,
)

OPS = (
    ATTENTION,
    replace(
        ATTENTION,
        name="ssdsl::banded_attention",
        windows=call_of("banded_attention_part", "query key value attn_mask | scale enable_gqa band parts"),
        text="F.scaled_dot_product_attention({query}, {key}, {value}, {attn_mask}, scale={scale}, "
        "enable_gqa={enable_gqa})",
    ),
    Op("aten::softmax", softmax, kernel=PartKernel(("self", "dim"), call_of("softmax_parts", OVER)), text=".softmax"),
    Op("aten::log_softmax", softmax, kernel=PartKernel(("self", "dim"), call_of("log_softmax_parts", OVER))),
    # as a derivative that is taken within the forward has them
    Op("aten::_softmax", softmax, kernel=PartKernel(("self", "dim"), call_of("softmax_parts", WITHOUT_DTYPE))),
    Op("aten::_log_softmax", softmax, kernel=PartKernel(("self", "dim"), call_of("log_softmax_parts", WITHOUT_DTYPE))),
)
