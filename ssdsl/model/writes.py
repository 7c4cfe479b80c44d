"""In-place changes that a graph of values cannot follow, found in the exported graph before it is made functional.

Functionalisation turns a change of an activation into a new value, and of a buffer into an update. It does so with
inputs and weights too, but there nobody takes the update. And where autograd does not see a change (of `x.detach()`, or
under `no_grad`), eager PyTorch leaves the gradient of `x` as it was, while the new value would have none.
"""

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.export.graph_signature import InputKind

from ssdsl.model.dropped_errors import TensorChanged
from ssdsl.model.node_place import place_of
from ssdsl.model.regions import AUTOCAST, REGION
from ssdsl.model.source import Model
from ssdsl.text.diagnostic import Diagnostic

REASONS = {
    "input": ("training comes back to the same batch, and a program keeps it as it was", "change a copy: x = x.clone()"),
    "weight": (
        "only the optimizer changes weights in a program",
        "compute a new tensor from the weight, or make it a registered buffer",
    ),
    "hidden": (
        "eager PyTorch keeps the gradient of the old value, and the program would stop it there",
        "compute a new tensor instead of changing this one",
    ),
}


@dataclass(slots=True)
class _Scope:
    """A graph or a region of it: what its placeholders stand for outside, and whether gradients flow in it."""

    module: fx.GraphModule
    outer: "_Scope | None" = None
    given: dict[fx.Node, fx.Node] = field(default_factory=dict)
    learns: bool = True


@dataclass(frozen=True, slots=True)
class _Base:
    """The tensor that a view shows, and whether autograd sees a change through the view."""

    node: fx.Node
    scope: _Scope
    hidden: bool


def lost_writes(program: torch.export.ExportedProgram, model: Model) -> Iterator[Diagnostic]:
    """A diagnostic for every change of an input or weight, and every one of an activation that autograd does not see."""
    finder = _Finder(program, model)
    yield from finder.of(_Scope(program.graph_module))


class _Finder:
    def __init__(self, program: torch.export.ExportedProgram, model: Model) -> None:
        specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
        self.kinds = {name: spec.kind for name, spec in specs.items()}
        self.targets = {name: (spec.target or "").removeprefix("module.") for name, spec in specs.items()}
        inputs = [name for name, spec in specs.items() if spec.kind is InputKind.USER_INPUT]
        self.targets |= dict(zip(inputs, model.batches[0], strict=True))
        self.trained = {n for n, w in model.module.named_parameters(remove_duplicate=False) if w.requires_grad}
        self.known: dict[fx.Node, bool] = {}

    def of(self, scope: _Scope) -> Iterator[Diagnostic]:
        for node in scope.module.graph.nodes:
            if inner := _region(node, scope):
                yield from self.of(inner)
            elif isinstance(node.target, torch._ops.OpOverload):
                for written in _written(node):
                    yield from self._judge(node, _base(written, scope))

    def _judge(self, node: fx.Node, base: _Base) -> Iterator[Diagnostic]:
        kind = self.kinds.get(base.node.name) if base.node.op == "placeholder" else None
        name = self.targets.get(base.node.name, "")
        if kind is InputKind.USER_INPUT:
            yield _diagnostic(node, f"input `{name}`", "input")
        elif kind is InputKind.PARAMETER:
            yield _diagnostic(node, f"weight `{name}`", "weight")
        elif kind is None and base.hidden and self._learns(base.node, base.scope):
            yield _diagnostic(node, "a tensor where autograd does not see it", "hidden")

    def _learns(self, node: fx.Node, scope: _Scope) -> bool:
        """Whether a gradient could flow into a value."""
        if node.op == "placeholder":
            if scope.outer is not None:
                return self._learns(scope.given[node], scope.outer)
            return self.kinds.get(node.name) is InputKind.PARAMETER and self.targets[node.name] in self.trained
        if node not in self.known:
            self.known[node] = False
            stops = node.target is torch.ops.aten.detach.default or not scope.learns
            self.known[node] = not stops and any(self._learns(n, scope) for n in node.all_input_nodes)
        return self.known[node]


def _region(node: fx.Node, scope: _Scope) -> _Scope | None:
    if node.target not in (REGION, AUTOCAST):
        return None
    count = 1 if node.target is REGION else 4
    function, *given = node.args[count:]
    assert isinstance(function, fx.Node)
    inner = getattr(scope.module, str(function.target))
    learns = bool(node.args[0]) if node.target is REGION else scope.learns
    outside: list[Any] = list(given)
    return _Scope(inner, scope, dict(zip(inner.graph.find_nodes(op="placeholder"), outside, strict=True)), learns)


def _written(node: fx.Node) -> Iterator[fx.Node]:
    """The arguments that a call changes in place."""
    given: Mapping[str, Any] = node.kwargs
    for position, argument in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = node.args[position] if position < len(node.args) else given.get(argument.name)
            if isinstance(value, fx.Node):
                yield value


def _base(node: fx.Node, scope: _Scope) -> _Base:
    """The tensor whose memory a value shows; `scope.learns` says whether the change itself is seen."""
    hidden = not scope.learns
    while True:
        if node.op == "placeholder" and scope.outer is not None:
            node, scope = scope.given[node], scope.outer
        elif node.target is operator.getitem and isinstance(node.args[0], fx.Node):
            results = node.args[0]
            if (inner := _region(results, scope)) is not None:
                (every,) = inner.module.graph.output_node().args
                node, scope = every[node.args[1]], inner  # type: ignore[index]
            else:
                node = results
        elif (shown := _shown(node)) is not None:
            hidden = hidden or node.target is torch.ops.aten.detach.default
            node = shown
        else:
            return _Base(node, scope, hidden)


def _shown(node: fx.Node) -> fx.Node | None:
    """The argument of which a call returns a view, or itself changed."""
    if not isinstance(node.target, torch._ops.OpOverload) or not node.args or not isinstance(node.args[0], fx.Node):
        return None
    if not any(r.alias_info is not None for r in node.target._schema.returns):
        return None
    before, after = (n.meta.get("val") for n in (node.args[0], node))
    converted = isinstance(after, torch.Tensor) and isinstance(before, torch.Tensor) and after.dtype != before.dtype
    return None if converted else node.args[0]


def _diagnostic(node: fx.Node, what: str, reason: str) -> TensorChanged:
    place = place_of(node)
    operation = str(node.target).split(".")[1]
    span = place.span() if place else None
    path = place.path if place else ""
    return TensorChanged(span, what, f"`{operation}`", path or "the model", *REASONS[reason])
