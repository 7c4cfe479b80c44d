"""Products of a mixture's experts: rows sorted by their expert, and rows that name it.

Sorted rows are whole, as where one expert's rows end depends on all of them. `routing.py` turns them into rows that
name their expert, `ssdsl::routed_mm`, which may be split as one likes: by rows, by experts (as a vocabulary is), inside
an expert.
"""

from typing import Any

import torch

from ssdsl.model.ops.library import LIBRARY
from ssdsl.model.ops.op import Op, PartKernel
from ssdsl.model.ops.reader import Reader
from ssdsl.model.ops.typed_call import TypedCall
from ssdsl.model.ops.whole import all_whole
from ssdsl.model.saved_tensors import Saved, extra
from ssdsl.runtime.routed import routed_mm

LIBRARY.define("routed_mm(Tensor rows, Tensor weights, Tensor experts) -> Tensor")


def _fake(rows: torch.Tensor, weights: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    return rows.new_empty(rows.shape[0], weights.shape[2])


def _saved(ctx: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    rows, weights, experts = ctx.saved_tensors
    leaves = rows.detach().requires_grad_(), weights.detach().requires_grad_()
    with torch.enable_grad():
        result = routed_mm(*leaves, experts)
    return *torch.autograd.grad(result, leaves, gradient), None


LIBRARY.impl("routed_mm", routed_mm, "CompositeExplicitAutograd")
torch.library.register_fake("ssdsl::routed_mm", _fake, lib=LIBRARY)
torch.library.register_autograd("ssdsl::routed_mm", _backward, setup_context=_saved, lib=LIBRARY)


def _flops(call: TypedCall) -> int:
    """Each row meets one expert."""
    rows, weights = call.shapes[:2]
    return 2 * rows[0] * weights[-2] * weights[-1]


def routed_mm_saves(reader: Reader) -> Saved:
    rows = reader.shape(reader.operand("experts").axes)
    order = extra("order of the rows", rows, "int64")
    return reader.named("rows/weights weights/rows") + order


ROUTED_PART = PartKernel(
    axis=("weights", 0),
    call="routed_mm({rows}, {weights}, {experts}, start={start})",
    forward=(),  # the parts add up
    backward=(),
    saved=routed_mm_saves,
)

OPS = (
    Op("aten::_grouped_mm", all_whole, contraction=True, flops=_flops),  # its sizes are multiples of 16 bytes
    Op(
        "transformers::grouped_mm_fallback",
        "rows! in, experts! in out, experts! -> rows! out",
        contraction=True,
        flops=_flops,
        projects=True,
        module="transformers.integrations.moe",
    ),
    Op(
        "ssdsl::routed_mm",
        "rows in, experts in out, rows -> rows out",
        kernel=ROUTED_PART,
        contraction=True,
        flops=_flops,
        projects=True,
        saved=routed_mm_saves,
        text="routed_mm",
    ),
)
