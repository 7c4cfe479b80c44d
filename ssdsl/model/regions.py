"""Regions of `no_grad` and `autocast`, which torch.export captures as functions of their own: inlined.

Decomposing would inline them as well, but forgets their modules, and that nothing learns in a region of `no_grad`. What
such a region computes is detached where it ends. Of a region of `autocast` only single operators remain as functions,
with the modules of their calls: decomposing them writes the casts into the graph as operators.
"""

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

REGION = torch.ops.higher_order.wrap_with_set_grad_enabled
AUTOCAST = torch.ops.higher_order.wrap_with_autocast
SETTING = "autocast"  # in a node's meta: device, dtype, enabled and caching of the innermost autocast around it


def inline_regions(module: fx.GraphModule) -> None:
    """Puts the nodes of every region in the place of its call."""
    _inline(module)
    for node in list(module.graph.nodes):
        setting = node.meta.pop(SETTING, None)
        if setting is not None and setting[2] and _casts(node.target, setting[0]):
            _alone(module, node, setting)
    module.recompile()


def _inline(module: fx.GraphModule) -> None:
    for call in list(module.graph.nodes):
        if call.target is REGION:
            learns, function, *given = call.args
            setting = None
        elif call.target is AUTOCAST:
            *setting, function = call.args[:5]
            learns, given = None, call.args[5:]
        else:
            continue
        inner = getattr(module, function.target)
        _inline(inner)
        if setting is not None:
            for node in inner.graph.nodes:
                node.meta.setdefault(SETTING, tuple(setting))
        results = _copy(module, call, inner, list(given))
        if learns is False:
            results = [_detached(module.graph, call, result) for result in results]
        for user in list(call.users):
            assert user.target is operator.getitem
            user.replace_all_uses_with(results[user.args[1]])
            module.graph.erase_node(user)
        module.graph.erase_node(call)
        module.graph.erase_node(function)
    module.recompile()


def _copy(module: fx.GraphModule, call: fx.Node, inner: fx.GraphModule, given: list[fx.Node]) -> list[fx.Node]:
    """The region's nodes in front of its call; the nodes of its results."""
    nodes: dict[fx.Node, fx.Node] = dict(zip(inner.graph.find_nodes(op="placeholder"), given, strict=True))
    for node in inner.graph.nodes:
        if node.op == "output":
            return [nodes[result] for result in node.args[0]]
        if node.op == "placeholder":
            continue
        with module.graph.inserting_before(call):
            nodes[node] = module.graph.node_copy(node, nodes.__getitem__)
        if node.op == "get_attr":
            nodes[node].target = f"{call.name}_{node.target}"
            setattr(module, f"{call.name}_{node.target}", getattr(inner, str(node.target)))
    raise AssertionError("a graph has an output")


def _detached(graph: fx.Graph, call: fx.Node, result: fx.Node) -> fx.Node:
    with graph.inserting_before(call):
        node = graph.call_function(torch.ops.aten.detach.default, (result,))
    node.meta = dict(result.meta)
    return node


def _casts(target: Callable[..., Any], device: str) -> bool:
    """Whether autocast may cast the arguments of an operator, or of those that it is composed of."""
    if not isinstance(target, torch._ops.OpOverload):
        return False
    key = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}.get(device)
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    name = target._schema.name + (f".{target._overloadname}" if target._overloadname != "default" else "")
    known = key is None or torch._C._dispatch_has_kernel_for_dispatch_key(name, key)
    return known or target.has_kernel_for_dispatch_key(composite)


def _alone(module: fx.GraphModule, node: fx.Node, setting: tuple[Any, ...]) -> None:
    """Puts one call into a region of its own."""
    inner = fx.Graph()
    given = {n: inner.placeholder(n.name) for n in node.all_input_nodes}
    inner.output(inner.node_copy(node, given.__getitem__))
    name = f"cast_{node.name}"
    setattr(module, name, fx.GraphModule(module, inner))
    with module.graph.inserting_before(node):
        function = module.graph.get_attr(name)
        call = module.graph.call_function(AUTOCAST, (*setting, function, *given))
    call.meta = dict(node.meta)
    node.replace_all_uses_with(call)
    module.graph.erase_node(node)
