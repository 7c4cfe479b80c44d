"""The rows of products of a mixture's experts: activations sorted by expert, or activations that name their expert.

Sorted ones cannot be split, as the place where one expert's activations end depends on all of them. Those that name
their expert, `ssdsl::routed_mm`, may be split in any way: by rows, by experts (like a vocabulary), inside an expert.
"""

import math

from ssdsl.model.memory.saved_tensors import Saved, extra
from ssdsl.model.ops.families.whole import all_whole
from ssdsl.model.ops.op import Op, PartKernel
from ssdsl.model.ops.reader import Reader, TypedCall
from ssdsl.model.target import target

OF_ROWS = ("combine", "count_rows", "dispatch", "expert_mm")  # only lowering makes them
PARAMETERS = {  # of ssdsl's own operators on rows
    "routed_mm": "rows weights experts",
    "expert_mm": "rows weights counts",
    "dispatch": "rows experts own",
    "combine": "rows experts own",
    "count_rows": "experts own each",
}
TARGETS = {name: target(f"ssdsl::{name}", parameters) for name, parameters in PARAMETERS.items()}


ROUTED = "torch.ops.ssdsl.routed_mm"


def _flops(call: TypedCall) -> int:
    """FLOPs where each row is multiplied by the matrix of one expert."""
    rows, weights = call.shapes[:2]
    return 2 * rows[0] * weights[-2] * weights[-1]


def places_saves(reader: Reader) -> Saved:
    """The tensor that `dispatch` and `combine` keep: the places of the rows of the part's experts."""
    tensors = (*reader.operator.inputs, *reader.operator.outputs)
    fewest = min(math.prod(reader.shape(t.axes[:1])) for t in tensors if len(t.axes) > 1 or t in tensors[-1:])
    return extra("places of the rows", (fewest,), "int64")


OPS = (
    # sizes of `_grouped_mm` are multiples of 16 bytes
    Op("aten::_grouped_mm", all_whole, contraction=True, flops=_flops, instead=ROUTED),
    Op(
        "transformers::grouped_mm_fallback",
        "rows! in, experts! in out, experts! -> rows! out",
        contraction=True,
        flops=_flops,
        projects=True,
        instead=ROUTED,
        module="transformers.integrations.moe",
    ),
    Op(
        "ssdsl::routed_mm",
        "rows in, experts in out, rows -> rows out",
        kernel=PartKernel(("weights", 0), "routed_mm({rows}, {weights}, {experts}, start={start})"),
        contraction=True,
        flops=_flops,
        projects=True,
        text="routed_mm",
        compiles=False,
    ),
    # made by lowering of `routed_mm`; captured graphs never contain these
    Op(
        "ssdsl::expert_mm",
        all_whole,
        contraction=True,
        flops=_flops,
        projects=True,
        saved="rows/weights weights/rows",
        text="expert_mm",
        compiles=False,
    ),
    Op("ssdsl::count_rows", all_whole, text="count_rows", compiles=False),
    Op("ssdsl::dispatch", all_whole, saved=places_saves, text="dispatch", compiles=False, ragged=True),
    Op("ssdsl::combine", all_whole, saved=places_saves, text="combine", fresh=True, compiles=False, ragged=False),
)
