"""Products of a mixture's experts: rows sorted by their expert, and rows that name it.

Sorted rows are whole, as where one expert's rows end depends on all of them. `routing.py` turns them into rows that
name their expert, `ssdsl::routed_mm`, which may be split as one likes: by rows, by experts (as a vocabulary is), inside
an expert.
"""

import math
from collections.abc import Callable
from typing import Any

import torch

from ssdsl.model.ops.library import LIBRARY
from ssdsl.model.ops.op import Op, PartKernel
from ssdsl.model.ops.reader import Reader
from ssdsl.model.ops.typed_call import TypedCall
from ssdsl.model.ops.whole import all_whole
from ssdsl.model.saved_tensors import Saved, extra
from ssdsl.runtime.routed import combine, count_rows, dispatch, expert_mm, routed_mm

Function = Callable[..., torch.Tensor]
FORMS: dict[Function, tuple[str, Function]] = {  # the operands, and the form of the result for all experts
    routed_mm: (
        "Tensor rows, Tensor weights, Tensor experts",
        lambda rows, weights, experts: rows.new_empty(rows.shape[0], weights.shape[2]),
    ),
    expert_mm: (
        "Tensor rows, Tensor weights, Tensor counts",
        lambda rows, weights, counts: rows.new_empty(rows.shape[0], weights.shape[2]),
    ),
    dispatch: ("Tensor rows, Tensor experts, Tensor own", lambda rows, experts, own: torch.empty_like(rows)),
    combine: ("Tensor rows, Tensor experts, Tensor own", lambda rows, experts, own: torch.empty_like(rows)),
}
MOVES = (dispatch, combine)
OF_ROWS = ("combine", "count_rows", "dispatch", "expert_mm")  # only lowering makes them


def _saved(ctx: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _places_saved(ctx: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs[1:])


def _backward_of(function: Function) -> Callable[..., tuple[torch.Tensor | None, ...]]:
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        moved = [torch.zeros_like(gradient)] if function in MOVES else []  # rows that are moved could be any
        given = [t.detach().requires_grad_(t.is_floating_point()) for t in (*moved, *ctx.saved_tensors)]
        with torch.enable_grad():
            result = function(*given)
        found = iter(torch.autograd.grad(result, [t for t in given if t.requires_grad], gradient))
        return tuple(next(found) if t.requires_grad else None for t in given)

    return backward


for function, (operands, form) in FORMS.items():
    name, context = f"ssdsl::{function.__name__}", _places_saved if function in MOVES else _saved
    LIBRARY.define(f"{function.__name__}({operands}) -> Tensor")
    LIBRARY.impl(function.__name__, function, "CompositeExplicitAutograd")
    torch.library.register_fake(name, form, lib=LIBRARY)
    torch.library.register_autograd(name, _backward_of(function), setup_context=context, lib=LIBRARY)

LIBRARY.define("count_rows(Tensor experts, Tensor own, SymInt each) -> Tensor")
LIBRARY.impl("count_rows", count_rows, "CompositeExplicitAutograd")
torch.library.register_fake(
    "ssdsl::count_rows",
    lambda experts, own, each: experts.new_empty(own.shape[0] * (experts.shape[0] // each)),
    lib=LIBRARY,
)


def _flops(call: TypedCall) -> int:
    """Each row meets one expert."""
    rows, weights = call.shapes[:2]
    return 2 * rows[0] * weights[-2] * weights[-1]


def routed_mm_saves(reader: Reader) -> Saved:
    rows = reader.shape(reader.operand("experts").axes)
    order = extra("order of the rows", rows, "int64")
    return reader.named("rows/weights weights/rows") + order


def places_saves(reader: Reader) -> Saved:
    """What moves rows keeps: where those of the part's experts are."""
    tensors = (*reader.operator.inputs, *reader.operator.outputs)
    fewest = min(math.prod(reader.shape(t.axes[:1])) for t in tensors if len(t.axes) > 1 or t in tensors[-1:])
    return extra("places of the rows", (fewest,), "int64")


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
    # rows at their experts, which lowering makes of `routed_mm`: their dimensions are not read from these rows
    Op(
        "ssdsl::expert_mm",
        all_whole,
        contraction=True,
        flops=_flops,
        projects=True,
        saved="rows/weights weights/rows",
        text="expert_mm",
    ),
    Op("ssdsl::count_rows", all_whole, text="count_rows"),
    Op("ssdsl::dispatch", all_whole, saved=places_saves, text="dispatch"),
    Op("ssdsl::combine", all_whole, saved=places_saves, text="combine", fresh=True),
)
