"""Operators that depend on the memory order of their operands, and the order that these have on one device.

`view_as_complex` needs pairs side by side, `as_strided` reads memory whatever the axes are, and a user's kernel may do
either. A part of a tensor that was gathered, joined or sliced may have another order than the whole, so a program gives
such an operand the order that it has on one device. A copy that the model makes for this (`contiguous`) is no operator
of the graph.
"""

import math
from typing import Any

import torch
from torch import fx

from ssdsl.model.graph import Order

aten = torch.ops.aten
AS_STRIDED = (aten.as_strided.default, aten.as_strided_scatter.default)
KERNELS = (aten.linalg_matrix_exp.default, aten._grouped_mm.default)  # inside, they view their operands
STRIDED = (aten.view_as_complex.default, aten.view.dtype, *AS_STRIDED, *KERNELS)  # torch does not tag them
TAGS = {torch.Tag.needs_exact_strides, torch.Tag.needs_fixed_stride_order, torch.Tag.needs_contiguous_strides}


def asks_for_order(target: Any) -> bool:
    """Whether the result of an overload may depend on the memory order of its operands. For operators of users it may,
    unless they are tagged `flexible_layout`."""
    if target.namespace in ("aten", "prims", "ssdsl"):
        return target in STRIDED or not TAGS.isdisjoint(target.tags)
    return torch.Tag.flexible_layout not in target.tags


def order_of(tensor: torch.Tensor) -> Order:
    """The axes of a tensor from the largest stride to the smallest, as `empty_like` keeps them. Axes of repeated
    elements (stride 0) have the place that `empty_like` gives them.

    >>> order_of(torch.empty(2, 3, 4)), order_of(torch.empty(2, 3, 4).mT)
    ((0, 1, 2), (0, 2, 1))
    >>> order_of(torch.empty(2, 1, 4).expand(2, 3, 4))
    (0, 1, 2)
    """
    like = torch.empty_strided(tuple(tensor.shape), tensor.stride(), dtype=tensor.dtype, device="meta")
    strides = torch.empty_like(like).stride()
    return tuple(sorted(range(len(strides)), key=lambda axis: -strides[axis]))


def fills_memory(tensor: torch.Tensor) -> bool:
    """Whether a tensor fills its memory: it is no view of a larger one."""
    return math.prod(tensor.shape) * tensor.element_size() == tensor.untyped_storage().nbytes()


def base_of(node: fx.Node) -> fx.Node:
    """The node of the value that a node of a captured graph is a view of (torch's `_base`); the node itself if it is no
    view."""
    memory = node.meta["val"].untyped_storage()._cdata
    for given in node.all_input_nodes:
        value = given.meta.get("val")
        if isinstance(value, (list, tuple)):  # parts of a tensor that was cut
            given, value = given.all_input_nodes[0], given.all_input_nodes[0].meta.get("val")
        if isinstance(value, torch.Tensor) and value.untyped_storage()._cdata == memory:
            return base_of(given)
    return node


def root_of(node: Any) -> Any:
    """The node whose tensor a chain of in-place calls changes and returns; for any other call, the node itself."""
    while isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
        node = node.args[0]
    return node
