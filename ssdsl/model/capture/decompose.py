"""Rewrites an exported program in operators that have rules, none of which changes a tensor in place.

torch's `run_decompositions` traces the whole program once more, which takes as long as exporting it. Here the graph is
copied call by call instead. A call that torch composes of others is replaced by those, recorded once for all calls of
equal shapes. A call that changes a tensor becomes one that makes a new tensor, which later calls read. Only programs
that cannot be copied so are traced by torch: those that change a view and later read its base or another view.
"""

import contextlib
import operator
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch import fx
from torch._export import utils
from torch.export.graph_signature import InputKind, InputSpec, OutputKind, OutputSpec, TensorArgument
from torch.utils._pytree import tree_leaves, tree_map_only

from ssdsl.model.capture.grad_mode_regions import AUTOCAST
from ssdsl.model.capture.preserve import patched, without_tensor_metadata
from ssdsl.model.capture.record import CallRecorder, RecordedCall
from ssdsl.model.checks.inplace_changes import base_of, written_by
from ssdsl.model.memory.memory_order import AS_STRIDED, root_of
from ssdsl.model.ops.functions import FunctionClass
from ssdsl.model.ops.registry import is_known
from ssdsl.model.rewrite.checked_algebra import UNCHECKED
from ssdsl.model.rewrite.grouped_norm import instance_norm
from ssdsl.model.rewrite.recurrent import RECURRENT, with_dropout
from ssdsl.record import Record, replace

aten = torch.ops.aten
COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
CHECK = "aten::_linalg_check_errors"
DATA = (torch.SymInt, torch.SymFloat, torch.SymBool)  # numbers that depend on a tensor's values
UPDATED = {InputKind.BUFFER: OutputKind.BUFFER_MUTATION, InputKind.PARAMETER: OutputKind.PARAMETER_MUTATION}
KEPT = (aten.dropout.default, aten.batch_norm.default)  # composed of others that change tensors
# Calls that are not copied: the first read memory around a view, the last changes buffers, which its name hides.
TRACED = (*AS_STRIDED, aten.instance_norm.default)


class Decomposed(Record):
    """A graph of operators with rules.

    `signature` names the nodes of its inputs and outputs, `changed` are the buffers and frozen weights that get a new
    value.
    """

    graph: fx.Graph
    signature: torch.export.ExportGraphSignature
    changed: frozenset[str]


class _TraceAll(Exception):
    """The program cannot be copied call by call."""


def decompose(program: torch.export.ExportedProgram) -> Decomposed:
    """The program in operators with rules; raises what torch raises if that is impossible."""
    _untie(program)
    with contextlib.suppress(_TraceAll):
        return _Copy(program).decomposed()
    _keep_checks()
    with _draws_kept(), _composites_listed(), without_tensor_metadata():
        traced = program.run_decompositions(dict(_composites()))
    changed = frozenset(
        s.target for s in traced.graph_signature.output_specs if s.kind in UPDATED.values() and s.target
    )
    return Decomposed(traced.graph, traced.graph_signature, changed)


def _untie(program: torch.export.ExportedProgram) -> None:
    """Gives each tied weight that the program changes one input, under its first name: torch cannot trace a change of
    a tensor that has two."""
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    changed = {base_of(given) for node in program.graph.nodes for given in written_by(node)}
    specs = program.graph_signature.input_specs
    same: dict[int, list[InputSpec]] = {}
    for spec in (s for s in specs if s.kind is InputKind.PARAMETER):
        same.setdefault(id(program.state_dict[spec.target or ""]), []).append(spec)
    for first, *others in same.values():
        if changed.isdisjoint(nodes[spec.arg.name] for spec in (first, *others)):
            continue
        for spec in others:
            nodes[spec.arg.name].replace_all_uses_with(nodes[first.arg.name])
            program.graph.erase_node(nodes[spec.arg.name])
            specs.remove(spec)


def _draws_kept() -> contextlib.AbstractContextManager[None]:
    """A context in which random calls stay in the graph even if nothing reads them, because draws are numbered."""
    from torch._inductor import config

    return config.patch(fallback_random=True)  # type: ignore[no-any-return]


def _keep_checks() -> None:
    """Tells torch that checks of linear algebra stay in a graph though they return nothing; from 2.13 on it knows."""
    from torch._higher_order_ops.effects import _EffectType, _get_effect, _register_effectful_op

    if _get_effect(CHECK) is None:
        _register_effectful_op(CHECK, _EffectType.ORDERED)


def _composites_listed() -> contextlib.AbstractContextManager[None]:
    """A context in which torch has all composite operators in `torch.ops`, and does not look for new ones again for
    each namespace."""
    utils._materialize_cpp_cia_ops()
    return patched(utils, "_materialize_cpp_cia_ops", lambda: None)


def _composites() -> dict[Any, Any]:
    """The decompositions of composite operators (autograd differentiates what they are composed of) without a rule,
    those of linear algebra without its checks, and of instance_norm, which changes buffers though its name does not
    show it."""
    found = {
        target: decomposition
        for target, decomposition in dict(torch.export.default_decompositions()).items()
        if isinstance(target, torch._ops.OpOverload)
        and FunctionClass.of(target) is None
        and target.has_kernel_for_dispatch_key(COMPOSITE)
        and not is_known(target)
    }
    recurrent = {target: with_dropout(found[target]) for target in RECURRENT}
    return found | recurrent | UNCHECKED | {aten.instance_norm.default: instance_norm}


class _Copy:
    """A functional copy of a program's graph. `copies` maps each node to its newest value in the copy: another one
    after each call that changes its tensor in place."""

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        self.program = program
        self.graph = fx.Graph()
        self.copies: dict[fx.Node, Any] = {}
        self.recorded: dict[Any, _Parts] = {}
        self.aliases = _Aliases(program.graph)
        inputs = program.graph_signature.input_specs
        self.state = {spec.arg.name: spec for spec in inputs if spec.kind in UPDATED}
        self.changed: dict[str, tuple[InputKind, fx.Node]] = {}

    def decomposed(self) -> Decomposed:
        """The copy; raises _TraceAll if a call cannot be copied."""
        for node in self.program.graph.nodes:
            self.copies[node] = self._copied(node)
        signature = self.program.graph_signature
        updates = [
            OutputSpec(UPDATED[kind], TensorArgument(self.copies[node].name), name)
            for name, (kind, node) in self.changed.items()
        ]
        results: Any = self.graph.output_node().args[0]
        outputs = [_named(spec, result) for spec, result in zip(signature.output_specs, results, strict=True)]
        changed = frozenset({*self.changed, *self._statistics()})
        return Decomposed(self.graph, replace(signature, output_specs=[*updates, *outputs]), changed)

    def _statistics(self) -> Iterator[str]:
        """The buffers that batch norms in training change, which their calls do not show."""
        for node in self.graph.find_nodes(op="call_function", target=aten.batch_norm.default):
            for statistics in node.args[3:5] if node.args[5] else ():
                if isinstance(statistics, fx.Node):
                    yield self._state(statistics)[1]

    def _state(self, node: fx.Node) -> tuple[InputKind, str]:
        """The kind and the name of a buffer or weight; raises _TraceAll for another tensor."""
        spec = self.state.get(node.name)
        if spec is None or spec.target is None:
            raise _TraceAll
        return spec.kind, spec.target

    def _copied(self, node: Any) -> Any:
        """The copy of a node; for a composed call, the nodes of its results."""
        if node.target is operator.getitem and not isinstance(self.copies[node.args[0]], fx.Node):
            return self.copies[node.args[0]][node.args[1]]
        if any(isinstance(leaf, DATA) for leaf in tree_leaves(node.meta.get("val"))):
            raise _TraceAll
        if node.op != "call_function" or node.target is operator.getitem:
            return self.graph.node_copy(node, self.copies.__getitem__)
        if node.target is AUTOCAST or _is_composed(node.target):
            return self._inlined(node)
        if node.target in TRACED or not isinstance(node.target, torch._ops.OpOverload):
            raise _TraceAll
        if node.target._schema.is_mutable:
            return self._new_value(node)
        return self._call(node.target, self._given(node), node.meta)

    def _given(self, node: fx.Node) -> Any:
        return fx.node.map_arg((node.args, node.kwargs), self.copies.__getitem__)

    def _call(self, target: Any, given: Any, meta: dict[str, Any]) -> fx.Node:
        word = target.overloadpacket.__name__ if isinstance(target, torch._ops.OpOverload) else target.__name__
        args, kwargs = given
        node = self.graph.create_node("call_function", target, args, kwargs, name=self.graph._target_to_str(word))
        node.meta = meta
        return node

    def _new_value(self, node: Any) -> fx.Node:
        """The new value of the tensor that a call changes: the result of the functional form of that call."""
        target, tensor = _functional_form(node.target), _value(node.args[0])
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), _value)
        with _on_fakes(tensor.fake_mode):
            made = target(*args, **kwargs)
        if _like(made) != _like(tensor):
            raise _TraceAll
        value = self._call(target, self._given(node), {**node.meta, "val": made})
        base = base_of(node)
        if base.op == "placeholder":
            kind, name = self._state(base)
            self.changed[name] = kind, base
        for same in self.aliases.changed_by(node):
            self.copies[same] = value
        return value

    def _inlined(self, node: Any) -> Any:
        """Copies the calls that a call is composed of; returns the nodes of its results."""
        tensors = [given for given in node.all_input_nodes if given.op != "get_attr"]
        words = {given: f"x{number}" for number, given in enumerate(tensors)}
        arguments = str(fx.node.map_arg((node.args, node.kwargs), lambda given: words.get(given, given)))
        key = node.target, arguments, *(_like(_value(given)) for given in tensors)
        if key not in self.recorded:
            self.recorded[key] = _record(node, tensors, self.program.graph_module)
        parts = self.recorded[key]
        inside = {id(x): self.copies[given] for x, given in zip(parts.tensors, tensors, strict=True)}

        def copied(item: Any) -> Any:
            return tree_map_only(torch.Tensor, lambda tensor: inside[id(tensor)], item)

        for part in parts.calls:
            made = self._call(part.target, copied((part.args, part.kwargs)), {**node.meta, "val": part.result})
            if isinstance(part.result, torch.Tensor):
                inside[id(part.result)] = made
                continue
            for number, result in enumerate(part.result):
                meta = {**node.meta, "val": result}
                inside[id(result)] = self._call(operator.getitem, ((made, number), {}), meta)
        return copied(parts.results)


def _named(spec: OutputSpec, result: Any) -> OutputSpec:
    """An output of a program, with the name of its node in the copy."""
    return replace(spec, arg=TensorArgument(result.name)) if isinstance(result, fx.Node) else spec


class _Aliases:
    """The nodes of a graph that share memory."""

    def __init__(self, graph: fx.Graph) -> None:
        self.position = {node: number for number, node in enumerate(graph.nodes)}
        self.sharing: dict[int, list[fx.Node]] = {}
        for node in graph.nodes:
            tensors = (leaf for leaf in tree_leaves(node.meta.get("val")) if isinstance(leaf, torch.Tensor))
            for memory in set(map(_memory, tensors)):
                self.sharing.setdefault(memory, []).append(node)

    def changed_by(self, node: fx.Node) -> list[fx.Node]:
        """The nodes that are the tensor that a call changes; raises _TraceAll if a view of it is read later."""
        at, root = self.position[node], root_of(node)
        before = [n for n in self.sharing[_memory(_value(node))] if self.position[n] <= at]
        if any(root_of(n) is not root and self._is_read(n, at) for n in before):
            raise _TraceAll
        return [n for n in before if root_of(n) is root and n is not node]

    def _is_read(self, node: fx.Node, at: int) -> bool:
        """Whether a node is read after a position; inputs, weights and buffers always are."""
        return node.op == "placeholder" or any(self.position[user] > at for user in node.users)


def _memory(tensor: torch.Tensor) -> int:
    """The memory of a tensor; raises _TraceAll for one inside of a function of torch.func, which shows none."""
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        raise _TraceAll
    return int(tensor.untyped_storage()._cdata)


def _value(node: fx.Node) -> Any:
    """The fake tensor of a node; raises _TraceAll if its shape depends on data, or is not known."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or any(isinstance(size, torch.SymInt) for size in value.shape):
        raise _TraceAll
    return value


def _like(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device


@cache
def _functional_form(target: torch._ops.OpOverload) -> torch._ops.OpOverload:
    """The operator that returns what another one writes into its first tensor; raises _TraceAll if there is none."""
    packet = getattr(getattr(torch.ops, target.namespace), target.overloadpacket.__name__.removesuffix("_"), None)
    found = getattr(packet, target._overloadname, None)
    if found is None or found._schema.is_mutable or not _changes_first(target._schema):
        raise _TraceAll
    return found  # type: ignore[no-any-return]


def _changes_first(schema: Any) -> bool:
    """Whether an operator writes into its first argument and returns it, and shares the memory of no other."""
    shared = [n for n, argument in enumerate(schema.arguments) if argument.alias_info is not None]
    returned = [result.alias_info is not None for result in schema.returns]
    return schema.is_mutable and shared == [0] and returned == [True]


@contextlib.contextmanager
def _on_fakes(mode: Any) -> Iterator[None]:
    """Runs operators on fake tensors; raises _TraceAll if torch cannot."""
    try:
        with mode:
            yield
    except Exception as error:  # an operator may raise anything
        raise _TraceAll from error


@cache
def _is_composed(target: Any) -> bool:
    """Whether torch composes an operator of others, and it has no row or may return its own input."""
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return False
    if target in KEPT or target._schema.is_mutable or not target.has_kernel_for_dispatch_key(COMPOSITE):
        return False
    aliases = any(argument.alias_info is not None for argument in target._schema.arguments)
    return aliases or torch.Tag.maybe_aliasing_or_mutating in target.tags or not is_known(target)


class _Parts(Record):
    """The calls that a call is composed of, the tensors that it reads, and its results."""

    tensors: list[torch.Tensor]
    calls: list[RecordedCall]
    results: Any


def _record(node: Any, tensors: list[fx.Node], module: fx.GraphModule) -> _Parts:
    if not tensors:
        raise _TraceAll
    values, recorder = {given: _value(given) for given in tensors}, _Composed()
    with torch._C._AutoDispatchBelowAutograd(), _on_fakes(values[tensors[0]].fake_mode), recorder:
        if node.target is AUTOCAST:
            device, dtype, enabled, cached, function, *given = node.args
            with torch.autocast(device, dtype=dtype, enabled=enabled, cache_enabled=cached):
                results = module.get_submodule(function.target)(*map(values.__getitem__, given))
        else:
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
            results = _decomposition(node.target)(*args, **kwargs)
    return _Parts([*values.values()], recorder.calls, results)


def _decomposition(target: Any) -> Any:
    return with_dropout(target.decompose) if target in RECURRENT else UNCHECKED.get(target, target.decompose)


class _Composed(CallRecorder):  # type: ignore[no-untyped-call]
    """Records calls of operators with rules: those that torch composes of others as these."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _is_composed(func):
            with self:
                return _decomposition(func)(*args, **(kwargs or {}))
        if func.namespace != "prim" and (func._schema.is_mutable or not is_known(func)):  # a check of values, perhaps
            raise _TraceAll
        return super().__torch_dispatch__(func, types, args, kwargs)
