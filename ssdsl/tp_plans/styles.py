"""The parallel styles of transformers (`ALL_PARALLEL_STYLES`): how each cuts weights, and what each does where its
module begins and ends.

Facts as of transformers 5.24, from `distributed/tensor_parallel.py` and `expert_parallel.py`.
"""

from collections.abc import Mapping
from enum import Enum, StrEnum

from ssdsl.record import Record


class WeightCut(Enum):
    """The axis along which a style cuts a weight of its module: an axis, counted from the end if it is negative, and of
    how many packed pieces each is cut by itself."""

    WHOLE = None
    OUT = (-2, 1)  # the only axis of a weight that has one
    IN = (-1, 1)
    FIRST = (0, 1)
    SECOND = (1, 1)
    PACKED_OUT = (-2, 2)
    PACKED_IN = (-1, 2)


class Takes(StrEnum):
    """What a style does where its module reads a value: in forward, and with the gradient in backward."""

    AS_IT_IS = "as it is"
    WHOLE = "whole; the gradient is summed if it is an addend"
    SHARED = "as it is; the gradient is always summed"  # by an all_reduce that asks nothing
    CUT = "its part of the last axis"
    CUTS = "whole, and cuts the last axis; the gradient is gathered"
    DIVIDED = "divided by the number of devices"
    SENT = "whole; rows go to the devices of their experts"


class Leaves(StrEnum):
    """What a style does with what its module computes."""

    AS_IT_IS = "as it is"
    CUT = "its part of the last axis"
    GATHERED = "whole: the last axis is gathered"
    SUMMED = "whole: addends are summed"
    PART_SUMMED = "as it is; the gradient of the last positions is summed"


class Style(Record):
    """What a style does. With `sums`, the gradients of its module's own weights are summed over the devices, whatever
    they are. A style without `bias` leaves that whole."""

    cut: WeightCut = WeightCut.WHOLE
    takes: Takes = Takes.AS_IT_IS
    leaves: Leaves = Leaves.AS_IT_IS
    sums: bool = False
    bias: bool = True


_GATHERED = Style(WeightCut.OUT, Takes.WHOLE, Leaves.GATHERED)
_ROWS = Style(WeightCut.IN, Takes.CUTS, Leaves.SUMMED, bias=False)

STYLES: Mapping[str, Style] = {
    "colwise": Style(WeightCut.OUT, Takes.WHOLE, Leaves.CUT),
    "colwise_gather_output": _GATHERED,
    "colwise_rep": _GATHERED,
    "rowwise": Style(WeightCut.IN, Takes.CUT, Leaves.SUMMED, bias=False),
    "rowwise_split_input": _ROWS,
    "rowwise_rep": _ROWS,
    "packed_colwise": Style(WeightCut.PACKED_OUT, Takes.SHARED, Leaves.AS_IT_IS),
    "packed_rowwise": Style(WeightCut.PACKED_IN),
    "embedding_rowwise": Style(WeightCut.FIRST, Takes.WHOLE, Leaves.SUMMED),
    "embedding_colwise": Style(WeightCut.SECOND, Takes.WHOLE, Leaves.GATHERED),
    "replicated_with_grad_allreduce": Style(sums=True),
    "mla_kv_a_proj": Style(leaves=Leaves.PART_SUMMED),
    "all_reduce": Style(leaves=Leaves.SUMMED),
    "moe_tp_experts": Style(takes=Takes.SHARED, leaves=Leaves.SUMMED),
    "moe_identity_expert": Style(takes=Takes.DIVIDED),
    "local_params": Style(),
    "replicate": Style(),
    "grouped_gemm": Style(WeightCut.FIRST),
    "ep_dispatch_experts": Style(takes=Takes.SENT, leaves=Leaves.SUMMED),
}  # `sequence_parallel` is left out: no plan of transformers names it, and its own flag does nothing yet
