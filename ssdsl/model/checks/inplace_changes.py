"""Finds in-place changes that a graph of values cannot follow, in the exported graph before it is made functional.

Functionalisation turns a change of an activation into a new value, and of a buffer or a frozen weight into an update.
It does so for inputs and trained weights too, but a program ignores these updates. And where autograd does not see a
change (of `x.detach()`, or under `no_grad`), eager PyTorch leaves the gradient of `x` as it was, while the new value
would have none.
"""

import operator
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import fx
from torch.export.graph_signature import InputKind, InputSpec

from ssdsl.model.capture.grad_mode_regions import without_gradient
from ssdsl.model.capture.source_line import place_of
from ssdsl.model.checks.errors import TensorChanged
from ssdsl.model.load.model import Model
from ssdsl.model.load.unmaterialised import named_tensors
from ssdsl.record import replace
from ssdsl.text.diagnostic import Diagnostic
from ssdsl.text.source import Span

REASONS = {
    "input": ("training uses the same batch again, and a program does not change it", "change a copy: x.clone()"),
    "weight": (
        "only the optimizer changes trained weights in a program",
        "compute a new tensor from the weight, or freeze it if it is not trained: `requires_grad_(False)`",
    ),
    "hidden": (
        "eager PyTorch keeps the gradient of the old value, and the program would stop it there",
        "compute a new tensor instead of changing this one",
    ),
    "memory": (
        "a later change of one tensor would change both, but in a program it does not",
        "copy the numbers instead: `copy_`",
    ),
    "unseen": (
        "it changes the tensor without declaring it, so a program would keep the old value",
        "compute the new value by other operators and write it by `copy_`; "
        "an operator of your own declares what it changes: `mutates_args`",
    ),
}


def lost_writes(program: torch.export.ExportedProgram, model: Model) -> Iterator[Diagnostic]:
    """A diagnostic for every line that changes inputs or trained weights, or activations where autograd does not see
    it."""
    finder = _Finder(program, model)
    lines: dict[tuple[Span | None, str], list[TensorChanged]] = {}
    for node in program.graph.nodes:
        for written in written_by(node):
            for change in finder.lost_changes(node, written):
                lines.setdefault((change.span, change.reason), []).append(change)
    for first, *others in lines.values():
        more = len({change.what for change in others} - {first.what})
        yield replace(first, what=f"{first.what} and {more} more") if more else first


def hidden_writes(
    program: torch.export.ExportedProgram, model: Model, changed: Collection[str], shown: Collection[str]
) -> Iterator[Diagnostic]:
    """A diagnostic for every buffer or frozen weight in `changed` by the forward for which the graph shows no update
    (`shown`). It points to the first operator that reads the tensor."""
    tensors = named_tensors(model.module)
    updated = {id(tensors[name]) for name in shown if name in tensors}  # by any of its names
    unseen = {name for name in changed if id(tensors[name]) not in updated}
    for spec in (s for s in program.graph_signature.input_specs if _target(s) in unseen):
        if (node := _reader(program, spec)) is not None:
            kind = "buffer" if spec.kind is InputKind.BUFFER else "weight"
            yield _diagnostic(node, f"{kind} `{_target(spec)}`", "unseen")


def _reader(program: torch.export.ExportedProgram, spec: InputSpec) -> fx.Node | None:
    """The first operator that reads an input and does not return a view of it."""
    nodes: Iterable[fx.Node] = program.graph.nodes
    for node in nodes:
        read = {base_of(n).name for n in node.all_input_nodes}
        if spec.arg.name in read and _shown(node) is None:
            return node
    return None


def _target(spec: InputSpec) -> str:
    return (spec.target or "").removeprefix("module.")


class _Finder:
    def __init__(self, program: torch.export.ExportedProgram, model: Model) -> None:
        specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
        self.kinds = {name: spec.kind for name, spec in specs.items()}
        self.targets = {name: _target(spec) for name, spec in specs.items()}
        inputs = [name for name, spec in specs.items() if spec.kind is InputKind.USER_INPUT]
        self.targets |= dict(zip(inputs, model.batches[0], strict=True))
        self.trained = {n for n, w in model.module.named_parameters(remove_duplicate=False) if w.requires_grad}
        self.still = without_gradient(program.graph)
        self.learning: set[fx.Node] = set()
        for node in program.graph.nodes:
            if node.op == "placeholder":
                learns = self.targets[node.name] in self.trained
            else:
                stops = node in self.still or node.target is torch.ops.aten.detach.default
                learns = not stops and not self.learning.isdisjoint(node.all_input_nodes)
            if learns:
                self.learning.add(node)

    def lost_changes(self, node: fx.Node, written: fx.Node) -> Iterator[TensorChanged]:
        if str(node.target).startswith("aten.set_."):
            yield _diagnostic(node, "the memory that a tensor uses", "memory")
            return
        base, is_hidden = _base(written, node in self.still)
        kind, name = self.kinds.get(base.name), self.targets.get(base.name, "")
        if kind is InputKind.USER_INPUT:
            yield _diagnostic(node, f"input `{name}`", "input")
        elif name in self.trained:
            yield _diagnostic(node, f"weight `{name}`", "weight")
        elif is_hidden and base in self.learning:
            yield _diagnostic(node, "a tensor where autograd does not see it", "hidden")


def written_by(node: fx.Node) -> Iterator[fx.Node]:
    """The arguments that a call changes in place."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return
    given: Mapping[str, Any] = node.kwargs
    for position, argument in enumerate(node.target._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = node.args[position] if position < len(node.args) else given.get(argument.name)
            if isinstance(value, fx.Node):
                yield value


def base_of(node: fx.Node) -> fx.Node:
    """The node that a call's result is a view of, as far as the operators' schemas say; for most, the node itself."""
    return _base(node, False)[0]


def _base(node: fx.Node, hidden: bool) -> tuple[fx.Node, bool]:
    """The node that a value is a view of, and whether a change through the view is hidden from autograd; `hidden` says
    that gradients are disabled where the value is changed."""
    while (shown := _shown(node)) is not None:
        hidden = hidden or node.target is torch.ops.aten.detach.default
        node = shown
    return node, hidden


def _shown(node: fx.Node) -> fx.Node | None:
    """The argument that a call returns a view of, or that it changes and returns; None for other calls."""
    if not node.args or not isinstance(node.args[0], fx.Node):
        return None
    if node.target is operator.getitem:
        return node.args[0]
    returns = node.target._schema.returns if isinstance(node.target, torch._ops.OpOverload) else ()
    if all(r.alias_info is None for r in returns):
        return None
    before, after = (n.meta.get("val") for n in (node.args[0], node))
    converted = isinstance(after, torch.Tensor) and isinstance(before, torch.Tensor) and after.dtype != before.dtype
    return None if converted else node.args[0]


def _diagnostic(node: fx.Node, what: str, reason: str) -> TensorChanged:
    place = place_of(node)
    operation = str(node.target).split(".")[1]
    span, where = (place.span(), place.where) if place else (None, "the model")
    return TensorChanged(span, what, f"`{operation}`", where, *REASONS[reason])
