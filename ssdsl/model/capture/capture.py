"""Captures a module as calls: exports it, decomposes it to operators with rules, and names every tensor."""

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves, tree_unflatten

from ssdsl.model.capture.call import CapturedCall, Tensor
from ssdsl.model.capture.decompose import UPDATED, Decomposed, decompose
from ssdsl.model.capture.derivatives import write_derivatives
from ssdsl.model.capture.errors import CONTROL_FLOW, GENERATOR, INSTEAD, POSITION, CaptureFailed
from ssdsl.model.capture.export import Exported, export, failure, no_loss
from ssdsl.model.capture.on_meta import without_numbers
from ssdsl.model.capture.preserve import quiet
from ssdsl.model.capture.source_line import own_span, path_of, source_of, span_of
from ssdsl.model.checks.inplace_changes import hidden_writes
from ssdsl.model.graph import Order, Origin, Ref
from ssdsl.model.load.model import Model
from ssdsl.model.load.unmaterialised import first_names
from ssdsl.model.memory.memory_order import asks_for_order, base_of, fills_memory, order_of
from ssdsl.record import replace
from ssdsl.text.diagnostic import PlanError

aten = torch.ops.aten
CHECK = "_linalg_check_errors"
UNCHECKED = "replace it by `torch.linalg.{}_ex`, which checks nothing"
NO_EFFECT = "leave it out of the forward"
STATISTICS = (
    "write a copy, `.clone()`, before the batch norm runs, to buffers of modules in eval mode; or leave running "
    "statistics as they are: a teacher in training has its own"
)


@dataclass(slots=True)
class Capture:
    """The calls of one forward pass with its loss, and the tensors that they read from outside."""

    calls: list[CapturedCall] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    origins: dict[str, Origin] = field(default_factory=dict)
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    loss: str = ""
    updates: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)

    def results(self) -> set[str]:
        """The values that the calls are for: the loss, new values of buffers, and outputs that were asked for."""
        return {self.loss, *self.updates.values(), *self.outputs.values()}

    def makers(self) -> dict[str, CapturedCall]:
        """The call that makes each value, in execution order."""
        return {output: call for call in self.calls for output in call.outputs}


def capture_calls(model: Model) -> Capture:
    """The calls of the model's forward in execution order, functional (no call changes a tensor in place).

    Raises PlanError when torch.export cannot capture the module or its result is no scalar loss.
    """
    exported = export(model)
    found = _decomposed(model, exported)
    capture = Capture()
    names = _placeholders(exported.program, found, model, capture)
    _Reader(capture, model.name, names).read(found.graph)
    _outputs(exported.program, found, model, names, capture)
    _check_new_statistics(model, capture)
    return capture


def _decomposed(model: Model, exported: Exported) -> Decomposed:
    """The exported program in operators that have rules, none of which changes a tensor in place."""
    try:
        with quiet():
            found = decompose(exported.program)
            write_derivatives(found.graph)
    except Exception as error:  # torch raises its own, of any type
        cause = next((n for n in exported.program.graph.nodes if _depends_on_data(n.meta.get("val"))), None)
        raise PlanError(
            failure(model, error, exported.derivative) if cause is None else _data_dependent(model.name, cause)
        ) from error
    written = {*map(_own, found.changed)}
    for name in sorted(exported.decisive.keys() & written):
        asked = exported.decisive[name]
        is_condition = asked is None or asked.is_condition
        fact = f"buffer `{name}` decides what the forward does, and the forward changes it"
        change = CONTROL_FLOW if is_condition else POSITION.format(buffer=name.rpartition(".")[2])
        raise PlanError(CaptureFailed(own_span(asked.place if asked else None), model.name, fact, change))
    changed = exported.written if model.evaluation is None else ()  # an evaluation leaves the model as it is
    if lost := tuple(hidden_writes(exported.program, model, changed, written)):
        raise PlanError(*lost)
    return found


def _placeholders(
    program: torch.export.ExportedProgram, found: Decomposed, model: Model, capture: Capture
) -> dict[str, str]:
    """Registers inputs, weights, buffers and constants; returns the value name of each placeholder node."""
    from torch.export.graph_signature import InputKind

    inputs = iter(model.batches[0])
    held = model.evaluation.buffers if model.evaluation is not None else frozenset()

    weights = dict(model.module.named_parameters(remove_duplicate=False))
    first = first_names(weights)  # tied weights are one value, under one name
    state = {*map(_own, found.changed), *held}
    names: dict[str, str] = {}
    nodes = {n.name: n for n in found.graph.find_nodes(op="placeholder")}
    for spec in found.signature.input_specs:
        node = nodes[spec.arg.name]
        target = _own(spec.target)
        value = node.meta.get("val")
        if spec.kind is InputKind.TOKEN:
            raise PlanError(_effect(model.name, found.graph))
        if spec.kind is InputKind.USER_INPUT:
            name, origin = next(inputs), Origin.INPUT
        elif spec.kind is InputKind.PARAMETER:
            name = first[target]
            origin = Origin.BUFFER if name in state else Origin.WEIGHT
        elif spec.kind is InputKind.BUFFER:
            name, origin = target, Origin.BUFFER if target in state else Origin.CONSTANT
            if origin is Origin.CONSTANT:
                constant = _constant(program, spec.target or "", model)
                known = model.numbers(name, constant)
                capture.constants[name] = constant if known is None else known
        else:
            tensor = _constant(program, spec.target or "", model)
            name, origin = _constant_name(target, tensor, model), Origin.CONSTANT
            capture.constants[name] = tensor
        names[node.name] = name
        if name in capture.origins and (origin is Origin.INPUT or capture.origins[name] is Origin.INPUT):
            fact = f"`{name}` is the name of an input and of a weight or buffer"
            raise PlanError(CaptureFailed(None, model.name, fact, "give one of them another name"))
        if isinstance(value, torch.Tensor):
            learns = origin is Origin.WEIGHT and weights[name].requires_grad
            capture.tensors[name] = replace(tensor_like(value), differentiable=learns)
            capture.origins[name] = origin
    return names


def _own(target: str | None) -> str:
    """The model's own name of a weight or buffer of the module that was exported."""
    return (target or "").removeprefix("module.")


def _constant(program: torch.export.ExportedProgram, target: str, model: Model) -> torch.Tensor:
    tensor = program.state_dict.get(target)
    if tensor is None:
        tensor = program.constants[target]
    if not isinstance(tensor, torch.Tensor):  # an object of torch's own
        if isinstance(tensor, torch.Generator):
            fact, change = "the forward draws from a generator of its own", GENERATOR
        else:
            fact, change = f"the forward uses an object of `{type(tensor).__name__}`", "use tensors and numbers"
        raise PlanError(CaptureFailed(None, model.name, fact, change))
    return without_numbers(tensor.detach())


def _constant_name(target: str, tensor: torch.Tensor, model: Model) -> str:
    """The name of a tensor that torch.export has lifted and numbered. Where the training program has another tensor of
    that name, the evaluation's gets a name of its own."""
    known = model.evaluation.constants.get(target) if model.evaluation is not None else None
    if known is None or (known.dtype == tensor.dtype and torch.equal(known, tensor)):
        return target
    return f"{target}_evaluated"


def _output_names(program: torch.export.ExportedProgram) -> list[str]:
    """The names of the outputs beside the loss, in the order of the results."""
    spec = program.call_spec.out_spec
    assert spec is not None
    _, places = tree_unflatten(range(spec.num_leaves), spec)
    return sorted(places, key=places.__getitem__)


def _outputs(
    program: torch.export.ExportedProgram, found: Decomposed, model: Model, names: dict[str, str], capture: Capture
) -> None:
    from torch.export.graph_signature import OutputKind

    wanted = iter(_output_names(program) if model.evaluation is not None else ())
    for spec in found.signature.output_specs:
        name = names.get(spec.arg.name or "") if hasattr(spec.arg, "name") else None
        if spec.kind in UPDATED.values() and name:
            if model.evaluation is not None:
                continue  # an evaluation leaves the model as it is
            capture.updates[_own(spec.target)] = name
        elif spec.kind is OutputKind.USER_OUTPUT:
            if capture.loss and name is not None and (output := next(wanted, None)) is not None:
                capture.outputs[output] = name
                continue
            if name is None or capture.loss:
                raise PlanError(no_loss(model, "several results" if capture.loss else "no tensor"))
            capture.loss = name
    if capture.tensors[capture.loss].shape != ():
        shape = list(capture.tensors[capture.loss].shape)
        raise PlanError(no_loss(model, f"a tensor of shape {shape}"))


def running_statistics(call: CapturedCall) -> tuple[str, ...]:
    """The running statistics that a call changes, if it is a batch norm in training, of any form."""
    if call.kind not in ("batch_norm", "_native_batch_norm_legit_functional") or not call.argument("training"):
        return ()
    taken = (call.argument("running_mean"), call.argument("running_var"))
    return tuple(item.value for item in taken if isinstance(item, Ref))


def _check_new_statistics(model: Model, capture: Capture) -> None:
    """Raises PlanError for a buffer that takes statistics, which a batch norm changes in the same step, as they are, or
    that is given another value and changed by a batch norm as well: programs change statistics in place."""
    changing = [(call, running_statistics(call)) for call in capture.calls]
    before = {new: old for call, taken in changing for new, old in zip(call.outputs[3:], taken, strict=False)}
    statistics = {name for _, taken in changing for name in taken}
    for buffer, value in capture.updates.items():
        first = value
        while first in before:
            first = before[first]
        if first != buffer and (first != value or value in statistics):
            fact = f"the forward gives a new value to `{buffer}`, and a batch norm changes it, or what it takes"
            raise PlanError(CaptureFailed(None, model.name, fact, STATISTICS))


@dataclass
class _Reader:
    """Walks an fx graph and appends its calls to the capture."""

    capture: Capture
    model: str
    names: dict[str, Any]

    def read(self, graph: fx.Graph) -> None:
        for node in graph.nodes:
            if node.op == "call_function":
                self._node(node)

    def _node(self, node: fx.Node) -> None:
        if node.target is operator.getitem:
            results, at = node.args
            self.names[node.name] = self.names[str(results)][at]
        elif isinstance(node.target, torch._ops.HigherOrderOperator):
            fact = f"`{node.target}` takes functions as arguments"
            change = "write it without functions as arguments; `torch.where` chooses between tensors"
            raise PlanError(CaptureFailed(span_of(node), self.model, fact, change))
        elif not str(node.target).startswith("aten._assert"):
            self._call(node)

    def _call(self, node: fx.Node) -> None:
        value = node.meta.get("val")
        results = list(value) if isinstance(value, (list, tuple)) else [value]
        if value is None:  # a check of values
            return
        if any(map(_depends_on_data, results)):
            raise PlanError(_data_dependent(self.model, node))
        args, orders = tuple(map(self._argument, node.args)), _orders(node) if asks_for_order(node.target) else ()
        if node.target is aten.as_strided.default and not fills_memory(node.all_input_nodes[0].meta["val"]):
            args, orders = self._in_memory(node, args)
        name = self._free(node.name)
        outputs = [name] if not isinstance(value, (list, tuple)) else [f"{name}_out{i}" for i in range(len(results))]
        for output, result in zip(outputs, results, strict=True):
            if isinstance(result, torch.Tensor):
                self.capture.tensors[output] = tensor_like(result)
        self.names[node.name] = outputs if isinstance(value, (list, tuple)) else name
        self.capture.calls.append(
            CapturedCall(
                name,
                kind_of(node.target),
                node.target,
                args,
                {k: self._argument(v) for k, v in node.kwargs.items()},
                path_of(node),
                source_of(node),
                tuple(outputs),
                orders=orders,
            )
        )

    def _in_memory(self, node: fx.Node, args: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Order, ...]]:
        """The arguments of an `as_strided` of a view, which may read memory around the view: the detached base of the
        view, with the view scattered into it."""
        view, base = node.all_input_nodes[0], base_of(node.all_input_nodes[0])
        shown, whole = view.meta["val"], base.meta["val"]
        place = tuple(shown.shape), shown.stride(), shown.storage_offset()
        still = self._added(node, "still", whole, aten.detach.default, self._argument(base))
        made = (still, self._argument(view), *place)
        around = self._added(node, "around", whole, aten.as_strided_scatter.default, *made, of=(whole, shown))
        start = args[3] if len(args) > 3 and args[3] is not None else place[2]
        return (around, *args[1:3], start), (order_of(whole),)

    def _added(
        self, near: fx.Node, word: str, like: torch.Tensor, target: Any, *args: Any, of: Sequence[torch.Tensor] = ()
    ) -> Ref:
        """Adds a call that torch.export has not recorded; `of` are the tensors whose memory order it depends on."""
        name = self._free(f"{near.name}_{word}")
        self.capture.tensors[name] = tensor_like(like)
        orders, place = tuple(map(order_of, of)), (path_of(near), source_of(near))
        self.capture.calls.append(CapturedCall(name, kind_of(target), target, args, {}, *place, (name,), orders=orders))
        return Ref(name)

    def _free(self, name: str) -> str:
        """A name that no weight, buffer or input has: `t`, or else `t_call`."""
        while name in self.capture.origins:
            name = f"{name}_call"
        return name

    def _argument(self, item: Any) -> Any:
        if isinstance(item, fx.Node):
            return Ref(self.names[item.name])
        if isinstance(item, (list, tuple)):
            return tuple(self._argument(i) for i in item)
        return math.nan if item != item else item  # in equal calls one object, which equals itself in a tuple


def _data_dependent(model: str, node: fx.Node) -> CaptureFailed:
    kind = kind_of(node.target)
    fact = f"`{kind}` gives a number, or a shape, that depends on a tensor's values"
    return CaptureFailed(span_of(node), model, fact, INSTEAD.get(kind, CONTROL_FLOW))


def _effect(model: str, graph: fx.Graph) -> CaptureFailed:
    """The mistake of a graph in which calls have effects: torch wraps each of them, with a token first."""
    node = next(n for n in graph.nodes if isinstance(n.target, torch._ops.HigherOrderOperator))
    kind = kind_of(node.args[1])
    if kind == CHECK:
        name = str(node.args[-1]).rpartition(".")[2]  # torch says `inv`, `linalg.inv` or `torch.linalg.solve`
        reason = f"`linalg.{name}` checks numbers, and may stop the run"
        return CaptureFailed(span_of(node), model, reason, UNCHECKED.format(name))
    return CaptureFailed(span_of(node), model, f"`{kind}` has an effect beside its result", NO_EFFECT)


def _orders(node: fx.Node) -> tuple[Order, ...]:
    """The memory order of each tensor that a node reads, in the order of its arguments."""
    read = (leaf for leaf in tree_leaves((node.args, node.kwargs)) if isinstance(leaf, fx.Node))
    return tuple(order_of(leaf.meta["val"]) for leaf in read)


def _depends_on_data(result: Any) -> bool:
    """Whether a result is a number read from a tensor, or has a size that is known only when it runs."""
    if isinstance(result, (list, tuple)):
        return any(map(_depends_on_data, result))
    if isinstance(result, torch.Tensor):
        return any(isinstance(n, torch.SymInt) for n in result.shape)
    return isinstance(result, (torch.SymInt, torch.SymFloat, torch.SymBool))


def kind_of(target: Any) -> str:
    """The name that selections and the rule table give an operator: `linear` for `aten.linear.default`."""
    return str(target).split(".")[1]


def tensor_like(tensor: torch.Tensor) -> Tensor:
    """The shape and dtype of a tensor as data."""
    return Tensor(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
