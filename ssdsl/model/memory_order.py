"""Operators that ask how their operands lie in memory, and the order in which these lie on one device.

`view_as_complex` wants pairs side by side, `as_strided` reads memory whatever the axes are, and a kernel of the user's
own may do either. A part of a tensor that was gathered, joined or sliced lies otherwise than the whole, so a program
lays such an operand as one device has it. A copy that the model makes for this (`contiguous`) is no operator here.
"""

import math
from typing import Any

import torch
from torch import fx

from ssdsl.model.graph import Order

aten = torch.ops.aten
AS_STRIDED = (aten.as_strided.default, aten.as_strided_scatter.default)
KERNELS = (aten.linalg_matrix_exp.default, aten._grouped_mm.default)  # which view what they are given
STRIDED = (aten.view_as_complex.default, aten.view.dtype, *AS_STRIDED, *KERNELS)  # torch does not tag them
TAGS = {torch.Tag.needs_exact_strides, torch.Tag.needs_fixed_stride_order, torch.Tag.needs_contiguous_strides}


def asks_for_order(target: Any) -> bool:
    """Whether a result depends on how the operands lie in memory, or may: as of every operator that is not torch's and
    is not tagged as one of a flexible layout."""
    if target.namespace in ("aten", "prims", "ssdsl"):
        return target in STRIDED or not TAGS.isdisjoint(target.tags)
    return torch.Tag.flexible_layout not in target.tags


def order_of(tensor: torch.Tensor) -> Order:
    """The order of a tensor's axes in memory, as `empty_like` takes it over: repeated elements have no place.

    >>> order_of(torch.empty(2, 3, 4)), order_of(torch.empty(2, 3, 4).mT)
    ((0, 1, 2), (0, 2, 1))
    >>> order_of(torch.empty(2, 1, 4).expand(2, 3, 4))
    (0, 1, 2)
    """
    like = torch.empty_strided(tuple(tensor.shape), tensor.stride(), dtype=tensor.dtype, device="meta")
    strides = torch.empty_like(like).stride()
    return tuple(sorted(range(len(strides)), key=lambda axis: -strides[axis]))


def fills_memory(tensor: torch.Tensor) -> bool:
    """Whether a tensor is all of its memory: it looks into no larger one."""
    return math.prod(tensor.shape) * tensor.element_size() == tensor.untyped_storage().nbytes()


def behind_view(node: fx.Node) -> fx.Node:
    """The value whose memory a node of a captured graph looks into; the node itself, if it is no view."""
    memory = node.meta["val"].untyped_storage()._cdata
    for given in node.all_input_nodes:
        value = given.meta.get("val")
        if isinstance(value, (list, tuple)):  # parts of a tensor that was cut
            given, value = given.all_input_nodes[0], given.all_input_nodes[0].meta.get("val")
        if isinstance(value, torch.Tensor) and value.untyped_storage()._cdata == memory:
            return behind_view(given)
    return node
