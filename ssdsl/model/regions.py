"""Regions under `no_grad`, which torch.export captures as functions of their own: inlined, and detached where they end.

Decomposing would inline them as well, but forgets their modules and that nothing in them learns.
"""

import operator

import torch
from torch import fx

REGION = torch.ops.higher_order.wrap_with_set_grad_enabled


def inline_regions(module: fx.GraphModule) -> None:
    """Puts the nodes of every region in the place of its call."""
    for call in module.graph.find_nodes(op="call_function", target=REGION):
        learns, function, *given = call.args
        inner = getattr(module, function.target)
        inline_regions(inner)
        results = _copy(module, call, inner, given)
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
