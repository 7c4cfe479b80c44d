"""Derivatives that a forward takes itself by `torch.autograd.grad`, as operators of the graph.

Forces are the derivative of an energy, and the residual of a differential equation has derivatives of a network. Such a
derivative is computed by the autograd engine, which torch.export does not see. So the call is recorded as one operator,
`ssdsl::derivative`. In the finished graph its place is taken by what autograd does on fake tensors for the operators
between the inputs and the outputs. Values of the forward are read and not computed again; no gradient is cut off where
autograd detaches what it saved, so the loss is differentiated through the derivative too.
"""

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx
from torch._C._functorch import (
    CInterpreter,
    CVmapInterpreterPtr,
    TransformType,
    get_interpreter_stack,
    get_unwrapped,
    is_batchedtensor,
    maybe_get_level,
)
from torch._decomp import core_aten_decompositions, decomposition_table
from torch._functorch import predispatch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from ssdsl.model.capture.source_line import span_of
from ssdsl.model.ops.registry import is_known
from ssdsl.text.source import Span

aten = torch.ops.aten
NORMS = (aten.native_layer_norm.default, aten.native_group_norm.default)


class NoDerivative(Exception):
    """A derivative that cannot be written as operators, with the reason, and the place where it is taken."""

    def __init__(self, reason: str, span: Span | None = None) -> None:
        super().__init__(reason)
        self.span = span


def recorded_derivative(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    *,
    create_graph: bool = False,
    allow_unused: bool | None = None,
    materialize_grads: bool = False,
    is_grads_batched: bool = False,
    **options: Any,
) -> tuple[torch.Tensor, ...]:
    """Records a call of `torch.autograd.grad`; arguments and results are those of that function. An unused input gets
    zeros."""
    if is_grads_batched:
        raise NotImplementedError("is_grads_batched")
    ends, starts = tree_leaves(outputs), tree_leaves(inputs)
    given = [None] * len(ends) if grad_outputs is None else tree_leaves(grad_outputs, is_leaf=lambda x: x is None)
    seeds = [_ones(y) if g is None else g for y, g in zip(ends, given, strict=True)]
    found = torch.ops.ssdsl.derivative(ends, starts, seeds, bool(allow_unused or materialize_grads))
    return tuple(found if create_graph else [g.detach() for g in found])


def _ones(like: torch.Tensor) -> torch.Tensor:
    return torch.ones(like.shape, dtype=like.dtype, device=like.device)


def recorded_grad_and_value(
    function: Callable[..., Any], argnums: int | Sequence[int], has_aux: bool, args: Any, kwargs: dict[str, Any]
) -> tuple[Any, Any]:
    """The gradients and the result of a function, for `torch.func.grad` and `grad_and_value`; derivatives are
    recorded."""
    args, by = _differentiable(args, argnums)
    result = function(*args, **kwargs)
    leaves, tree = tree_flatten(by)
    found = recorded_derivative(result[0] if has_aux else result, leaves, create_graph=True, allow_unused=True)
    return tree_unflatten(found, tree), result


def recorded_vjp(
    function: Callable[..., Any], *primals: Any, argnums: int | Sequence[int] | None = None, has_aux: bool = False
) -> tuple[Any, ...]:
    """The result of a function and its vjp, for `torch.func.vjp` and `jacrev`; derivatives are recorded."""
    primals, by = _differentiable(primals, range(len(primals)) if argnums is None else argnums)
    result = function(*primals)
    output, *more = result if has_aux else (result,)
    leaves, tree = tree_flatten(by)

    def vjp(cotangents: Any, **options: Any) -> Any:
        found = recorded_derivative(output, leaves, cotangents, create_graph=True, allow_unused=True)
        return tree_unflatten(found, tree)

    return output, vjp, *more


def _differentiable(args: Sequence[Any], argnums: int | Sequence[int]) -> tuple[tuple[Any, ...], Any]:
    """The arguments, those of `argnums` as views, and these views. Their derivative is that of the function's arguments
    alone: it does not count other uses of the same tensors, such as in a closure. Under `torch.func.vmap` each sample
    has views of its own, and so derivatives of its own by weights that all of them share."""
    chosen = [n % len(args) for n in ([argnums] if isinstance(argnums, int) else argnums)]
    maps = [m for m in get_interpreter_stack() or () if m.key() == TransformType.Vmap]
    args = tuple(tree_map(partial(_view, maps=maps), a) if n in chosen else a for n, a in enumerate(args))
    return args, args[argnums] if isinstance(argnums, int) else tuple(args[n] for n in chosen)


def _view(item: Any, maps: Sequence[CInterpreter]) -> Any:
    return _of_each_sample(item.view_as(item), maps) if isinstance(item, torch.Tensor) else item


def _of_each_sample(item: torch.Tensor, maps: Sequence[CInterpreter]) -> torch.Tensor:
    """The tensor with an axis of samples for each map around it, where it lacks some: it is repeated along these."""
    if {m.level() for m in maps} == {*_levels(item)}:
        return item
    for m in reversed(maps):
        item = predispatch._remove_batch_dim(item, m.level(), CVmapInterpreterPtr(m).batchSize(), 0)
    for m in maps:
        item = predispatch._add_batch_dim(item, 0, m.level())
    return item


def _levels(item: torch.Tensor) -> Iterator[int]:
    """The maps along which a tensor has samples, the innermost first."""
    while is_batchedtensor(item):
        yield maybe_get_level(item)
        item = get_unwrapped(item)


def write_derivatives(graph: fx.Graph) -> None:
    """Replaces recorded derivatives by operators, the first ones first: one may be of another. Raises NoDerivative."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.ssdsl.derivative.default):
        try:
            with graph.inserting_before(node):
                results = _written(graph, node)
        except NoDerivative as error:
            raise NoDerivative(str(error), span_of(node)) from error
        for user in list(node.users):
            user.replace_all_uses_with(results[user.args[1]])
            graph.erase_node(user)
        graph.erase_node(node)


def _written(graph: fx.Graph, node: Any) -> list[Any]:
    """The nodes of a derivative's results, added to the graph."""
    starts, ends = node.args[1], node.args[0]
    path = _between(graph, starts, ends)
    reads = dict.fromkeys([*starts, *ends, *node.args[2], *(n for p in path for n in p.all_input_nodes)])
    given = [n for n in reads if n not in path]
    traced = _traced(_derivative(node, path), given)
    copies: dict[Any, Any] = dict(zip(traced.find_nodes(op="placeholder"), given, strict=True))
    results: Any = traced.output_node().args[0]
    found, values = results
    copies |= {value: known for known, value in zip(_tensors(path), values, strict=True) if value not in copies}
    for new in traced.nodes:
        if new.op == "get_attr":
            raise NoDerivative("it uses a tensor that is made while it is taken")
        if new.op == "call_function" and new not in copies:
            copies[new] = _copy(graph, new, copies, node.meta)
    return [copies[result] for result in found]


def _copy(graph: fx.Graph, new: Any, copies: dict[Any, Any], meta: dict[str, Any]) -> Any:
    """A traced node in the graph, as an operator that has a row. It belongs to the module and line that `meta` says."""
    args, kwargs = fx.node.map_arg((new.args, new.kwargs), copies.__getitem__)
    match new.target:
        case aten.detach.default | aten.alias.default:
            return args[0]
        case aten.view.default | aten._unsafe_view.default:
            target = aten.reshape.default
        case aten.convolution.default:
            target, args = _convolution(*args)
        case operator.getitem if "norm" in str(new.args[0].target) and new.args[1] and new.users:
            raise NoDerivative(f"`{new.args[0].target}` keeps statistics through which no gradient flows")
        case aten.slice_scatter.default | aten.select_scatter.default if new.meta["val"].is_complex():
            raise NoDerivative(f"torch does not differentiate `{new.target}` of complex numbers")
        case torch._ops.OpOverload() if torch.Tag.nondeterministic_seeded in new.target.tags:
            raise NoDerivative(f"`{new.target}` draws random numbers in it")
        case _:
            target = new.target
    node = graph.call_function(target, tuple(args), kwargs)
    value = args[0].meta["val"][args[1]] if target is operator.getitem else new.meta["val"]
    node.meta = meta | {"val": value}
    return node


def _convolution(
    x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, more: Any, groups: int
) -> tuple[Any, tuple[Any, ...]]:
    """`aten::convolution` as the operator of so many axes of space that programs call."""
    space = len(stride)
    if transposed:
        target = (aten.conv_transpose1d.default, aten.conv_transpose2d.input, aten.conv_transpose3d.input)[space - 1]
        return target, (x, weight, bias, stride, padding, more, groups, dilation)
    target = (aten.conv1d.default, aten.conv2d.default, aten.conv3d.default)[space - 1]
    return target, (x, weight, bias, stride, padding, dilation, groups)


def _between(graph: fx.Graph, starts: Sequence[Any], ends: Sequence[Any]) -> dict[Any, None]:
    """The nodes through which the ends depend on the starts, in order."""
    behind, needed = {*starts}, {*ends}
    for node in graph.nodes:
        if not behind.isdisjoint(node.all_input_nodes):
            behind.add(node)
    for node in reversed(graph.nodes):
        if node in needed and node not in starts:
            needed.update(node.all_input_nodes)
    return {node: None for node in graph.nodes if node in behind and node in needed and node not in starts}


def _tensors(path: Iterable[fx.Node]) -> list[fx.Node]:
    """The nodes whose value is a tensor."""
    return [node for node in path if isinstance(node.meta["val"], torch.Tensor)]


Traced = Callable[[dict[fx.Node, Any]], tuple[list[torch.Tensor], list[torch.Tensor]]]


def _derivative(node: Any, path: Iterable[Any]) -> Traced:
    """The function that is traced: from the values of what is read to the derivatives, and the values of the path."""
    ends, starts, seeds, unused = node.args

    def derivative(value: dict[fx.Node, Any]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
            value |= {start: value[start].detach().requires_grad_() for start in starts}
            for step in path:
                args, kwargs = fx.node.map_arg((step.args, step.kwargs), value.__getitem__)
                # attention's result lies in another order than that of the kernel that was captured
                target = aten.reshape.default if step.target is aten.view.default else step.target
                value[step] = target(*args, **kwargs)
            outputs, inputs, gradients = ([value[n] for n in nodes] for nodes in (ends, starts, seeds))
            options = {"create_graph": True, "allow_unused": unused, "materialize_grads": unused}
            found = torch.autograd.grad(outputs, inputs, gradients, **options)
        return [*found], [value[n] for n in _tensors(path)]

    return derivative


def _traced(function: Traced, reads: list[fx.Node]) -> fx.Graph:
    """The operators of a function of the values of `reads`, none of which changes a tensor; those without a row are
    composed of others where torch knows how."""
    composed: dict[Any, Any] = core_aten_decompositions()
    table = {target: found for target, found in composed.items() if not is_known(target)}
    table |= {norm: decomposition_table[norm] for norm in NORMS}
    table[aten.convolution_backward.default] = _convolution_backward
    values = [node.meta["val"].detach() for node in reads]
    try:
        with values[0].fake_mode:  # also for tensors that are made without another one
            traced = make_fx(lambda *given: function(dict(zip(reads, given, strict=True))), table)(*values)
            return make_fx(torch.func.functionalize(traced))(*values).graph
    except RuntimeError as error:  # torch's own words: no derivative is known, or a value is not reached
        raise NoDerivative(str(error).partition("\n")[0]) from error


def _convolution_backward(
    gradient: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias_sizes: Any,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    more: list[int],
    groups: int,
    mask: list[bool],
) -> tuple[torch.Tensor | None, ...]:
    """The gradient of a convolution's input as a convolution in the other direction; that of its weight as one of the
    input by the gradient, whose samples are their channels; that of its bias as a sum.

    Raises NoDerivative for the weight of a transposed convolution, or of one in groups.
    """
    if mask[1] and (transposed or groups > 1):
        raise NoDerivative("the gradient of this convolution's weight is no convolution")
    of_x = of_weight = of_bias = None
    if mask[0]:
        sizes = zip(x.shape[2:], gradient.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
        rest = [0 if transposed else n - (m - 1) * s + 2 * p - d * (k - 1) - 1 for n, m, k, s, p, d in sizes]
        of_x = aten.convolution(gradient, weight, None, stride, padding, dilation, not transposed, rest, groups)
    if mask[1]:
        pair = x.transpose(0, 1), gradient.transpose(0, 1)
        of_weight = aten.convolution(*pair, None, dilation, padding, stride, False, [0] * len(stride), 1)
        for axis, size in enumerate(weight.shape[2:], start=2):
            of_weight = of_weight.narrow(axis, 0, size)
        of_weight = of_weight.transpose(0, 1)
    if mask[2]:
        of_bias = gradient.sum([0, *range(2, gradient.dim())])
    return of_x, of_weight, of_bias
