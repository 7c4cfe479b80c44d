"""Writes regions of `no_grad` and `autocast` into the graph as operators.

torch.export makes a function of each region, whose operators forget their modules; and it forgets a `no_grad` inside an
`autocast`. Here it leaves the begin and the end of a region in the graph instead. Values computed without gradients are
detached where the region ends. Each operator whose arguments autocast casts is put into a function of its own, with the
module of its call: decomposing these functions writes the casts into the graph.
"""

import contextlib
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import fx
from torch._export.passes import replace_autocast_with_hop_pass, replace_set_grad_with_hop_pass
from torch.amp import autocast_mode

from ssdsl.model.capture.preserve import patched
from ssdsl.model.memory.memory_order import base_of, root_of
from ssdsl.model.ops.functions import FunctionClass

AUTOCAST = torch.ops.higher_order.wrap_with_autocast
ENTER: Any = autocast_mode._enter_autocast
EXIT: Any = autocast_mode._exit_autocast
SET_GRAD: Any = torch._C._set_grad_enabled
KEYS = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}
Setting = tuple[Any, ...]  # device, dtype, enabled, cached: the arguments of autocast


@contextlib.contextmanager
def regions_left_open() -> Iterator[None]:
    """A context in which exporting does not turn regions into functions."""
    with contextlib.ExitStack() as stack:
        for module in (replace_autocast_with_hop_pass, replace_set_grad_with_hop_pass):
            name = module.__name__.rpartition(".")[2]
            stack.enter_context(patched(module, name, lambda graph, signature: (graph, signature)))
        yield


def without_gradient(graph: fx.Graph) -> set[fx.Node]:
    """The nodes that are computed where gradients are disabled."""
    found: set[fx.Node] = set()
    learns = True
    for node in graph.nodes:
        if node.target is SET_GRAD:
            learns = bool(node.args[0])
        elif node.op == "call_function" and (node.args[0] in found if node.target is operator.getitem else not learns):
            found.add(node)
    return found


def write_regions(module: fx.GraphModule) -> None:
    """Detaches values that leave `no_grad` regions; puts each operator that autocast casts into its own function."""
    _detach(module.graph)
    around: list[Setting] = []
    for node in list(module.graph.nodes):
        if node.target is ENTER:
            around.append(node.args)
        elif node.target is EXIT:
            around.pop()
            (begin,) = node.args
            module.graph.erase_node(node)
            module.graph.erase_node(begin)
        elif around and around[-1][2] and _casts(node.target, around[-1][0]):
            _alone(module, node, around[-1])
    module.recompile()


def _detach(graph: fx.Graph) -> None:
    still = without_gradient(graph)
    for node in graph.find_nodes(op="call_function", target=SET_GRAD):
        graph.erase_node(node)
    calls = [n for n in graph.nodes if n in still and isinstance(n.meta.get("val"), torch.Tensor)]
    for node in calls:
        if _writes_a_view(node):  # the tensor behind it may be read outside, and has no gradient from what is written
            for given in node.all_input_nodes[1:]:
                _detached(graph, given, [node])
    for node in calls:
        if outside := [user for user in node.users if user not in still]:
            _detached(graph, node, outside)


def _detached(graph: fx.Graph, node: fx.Node, users: Iterable[fx.Node]) -> None:
    """Lets users of a node read it without its gradient."""
    with graph.inserting_after(node):
        detached = graph.call_function(torch.ops.aten.detach.default, (node,))
    detached.meta = dict(node.meta)
    for user in users:
        user.replace_input_with(node, detached)


def _writes_a_view(node: fx.Node) -> bool:
    """Whether a call changes its first argument, which is a view of another tensor."""
    root = root_of(node)
    return root is not node and base_of(root) is not root


def _casts(target: Callable[..., Any] | str, device: str) -> bool:
    """Whether autocast may cast the arguments of an operator, or of the operators that it is composed of."""
    if not isinstance(target, torch._ops.OpOverload) or FunctionClass.of(target) is not None:
        return False  # a user's function enters autocast itself
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    if device not in KEYS or target.has_kernel_for_dispatch_key(composite):
        return True
    name = target.name()  # type: ignore[no-untyped-call]
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, KEYS[device]))


def _alone(module: fx.GraphModule, node: fx.Node, setting: Setting) -> None:
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
