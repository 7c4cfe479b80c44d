"""From a module to captured calls: torch.export, decomposed to operators with rules, every tensor given its name."""

import contextlib
import functools
import io
import logging
import operator
import re
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import fx

from ssdsl.model.call import Call, Tensor
from ssdsl.model.graph import Origin, Ref
from ssdsl.model.ops.registry import is_known
from ssdsl.model.regions import inline_regions
from ssdsl.model.source import Model
from ssdsl.model.trace_errors import CaptureFailed, NotALoss
from ssdsl.text.diagnostic import PlanError


@dataclass(slots=True)
class Capture:
    """The calls of one forward pass with its loss, and the tensors that they read from outside."""

    calls: list[Call] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    origins: dict[str, Origin] = field(default_factory=dict)
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    loss: str = ""
    updates: dict[str, str] = field(default_factory=dict)


class LossOf(torch.nn.Module):
    """Calls a module with the tensors of a batch by name and returns its loss."""

    def __init__(self, module: torch.nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.module = module
        self.names = names

    def forward(self, *batch: torch.Tensor) -> Any:
        result = self.module(**dict(zip(self.names, batch, strict=True)))
        return getattr(result, "loss", result)


def capture_calls(model: Model) -> Capture:
    """The calls of the model's forward in execution order, functional (no call changes a tensor in place).

    Raises PlanError when torch.export cannot capture the module or its result is no scalar loss.
    """
    program = _export(model)
    capture = Capture()
    names = _placeholders(program, model, capture)
    _Reader(capture, model.name, names).read(program.graph)
    _outputs(program, model, names, capture)
    return capture


def _export(model: Model) -> torch.export.ExportedProgram:
    batch = model.batches[0]
    wrapped = LossOf(model.module, tuple(batch))
    try:
        with _quiet():
            program = torch.export.export(wrapped, tuple(batch.values()), strict=False)
            inline_regions(program.graph_module)
            decomposed: torch.export.ExportedProgram = program.run_decompositions(dict(_composites()))
            return decomposed
    except Exception as error:  # torch.export raises its own and the module's errors of any type
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        frames = [(f.filename, str(f.lineno)) for f in traceback.extract_tb(error.__traceback__)]
        reason = f"torch.export says: {reason}, at {_innermost(frames)}"
        raise PlanError(CaptureFailed(None, model.name, reason)) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Holds back what torch.export prints, which is the whole graph where it fails."""
    level, held = logging.root.manager.disable, io.StringIO()
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(held), contextlib.redirect_stderr(held):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


@functools.cache
def _composites() -> dict[Any, Any]:
    """The operators that torch defines by others, and autograd differentiates through these: those without a rule."""
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    return {
        operator: decomposition
        for operator, decomposition in dict(torch.export.default_decompositions()).items()
        if isinstance(operator, torch._ops.OpOverload)
        and operator.has_kernel_for_dispatch_key(composite)
        and not is_known(operator)
    }


def _placeholders(program: torch.export.ExportedProgram, model: Model, capture: Capture) -> dict[str, str]:
    """Registers inputs, weights, buffers and constants; returns the value name of each placeholder node."""
    from torch.export.graph_signature import InputKind

    inputs = iter(model.batches[0])
    mutated = set(program.graph_signature.buffers_to_mutate.values())
    names: dict[str, str] = {}
    weights = dict(model.module.named_parameters(remove_duplicate=False))
    first_name = {id(w): name for name, w in reversed(weights.items())}  # tied weights are one value, under one name
    nodes = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
    for spec in program.graph_signature.input_specs:
        node = nodes[spec.arg.name]
        target = (spec.target or "").removeprefix("module.")
        value = node.meta.get("val")
        if spec.kind is InputKind.TOKEN:
            raise PlanError(CaptureFailed(None, model.name, "an operator of it checks values or has side effects"))
        if spec.kind is InputKind.USER_INPUT:
            name, origin = next(inputs), Origin.INPUT
        elif spec.kind is InputKind.PARAMETER:
            name, origin = first_name[id(weights[target])], Origin.WEIGHT
        elif spec.kind is InputKind.BUFFER:
            name, origin = target, Origin.BUFFER if spec.target in mutated else Origin.CONSTANT
            if origin is Origin.CONSTANT:
                capture.constants[name] = _constant(program, spec.target or "")
        else:
            name, origin = target, Origin.CONSTANT
            capture.constants[name] = _constant(program, spec.target or "")
        names[node.name] = name
        if name in capture.origins and (origin is Origin.INPUT or capture.origins[name] is Origin.INPUT):
            fact = f"`{name}` is the name of an input and of a weight or buffer: give one of them another"
            raise PlanError(CaptureFailed(None, model.name, fact))
        if isinstance(value, torch.Tensor):
            learns = origin is Origin.WEIGHT and weights[name].requires_grad
            capture.tensors[name] = Tensor(tuple(value.shape), _dtype(value), learns)
            capture.origins[name] = origin
    return names


def _constant(program: torch.export.ExportedProgram, target: str) -> torch.Tensor:
    tensor = program.state_dict.get(target)
    if tensor is None:
        tensor = program.constants[target]
    assert isinstance(tensor, torch.Tensor)
    return tensor.detach()


def _outputs(program: torch.export.ExportedProgram, model: Model, names: dict[str, str], capture: Capture) -> None:
    from torch.export.graph_signature import OutputKind

    for spec in program.graph_signature.output_specs:
        name = names.get(spec.arg.name or "") if hasattr(spec.arg, "name") else None
        if spec.kind is OutputKind.BUFFER_MUTATION and name:
            capture.updates[(spec.target or "").removeprefix("module.")] = name
        elif spec.kind is OutputKind.USER_OUTPUT:
            if name is None or capture.loss:
                raise PlanError(NotALoss(None, model.name, "several results" if capture.loss else "no tensor"))
            capture.loss = name
    if capture.tensors[capture.loss].shape != ():
        shape = list(capture.tensors[capture.loss].shape)
        raise PlanError(NotALoss(None, model.name, f"a tensor of shape {shape}"))


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
            fact = f"`{node.target}` takes functions as arguments, at {_source(node)}"
            raise PlanError(CaptureFailed(None, self.model, fact))
        elif not str(node.target).startswith("aten._assert"):
            self._call(node)

    def _call(self, node: fx.Node) -> None:
        value = node.meta.get("val")
        results = list(value) if isinstance(value, (list, tuple)) else [value]
        if value is None:  # a check of values
            return
        if any(map(_depends_on_data, results)):
            fact = f"`{kind_of(node.target)}` gives a number, or a shape, that depends on a tensor's values"
            raise PlanError(CaptureFailed(None, self.model, f"{fact}, at {_source(node)}"))
        name = self._free(node.name)
        outputs = [name] if not isinstance(value, (list, tuple)) else [f"{name}_out{i}" for i in range(len(results))]
        for output, result in zip(outputs, results, strict=True):
            if isinstance(result, torch.Tensor):
                self.capture.tensors[output] = Tensor(tuple(result.shape), _dtype(result))
        self.names[node.name] = outputs if isinstance(value, (list, tuple)) else name
        self.capture.calls.append(
            Call(
                name,
                kind_of(node.target),
                node.target,
                tuple(self._argument(a) for a in node.args),
                {k: self._argument(v) for k, v in node.kwargs.items()},
                _path(node),
                _source(node),
                tuple(outputs),
            )
        )

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
        return item


def _depends_on_data(result: Any) -> bool:
    """Whether a result is a number read from a tensor, or has a size that is known only when it runs."""
    if isinstance(result, torch.Tensor):
        return any(isinstance(n, torch.SymInt) for n in result.shape)
    return isinstance(result, (torch.SymInt, torch.SymFloat, torch.SymBool))


def kind_of(target: Any) -> str:
    """What selections and the rule table call an operator: `linear` of `aten.linear.default`."""
    return str(target).split(".")[1]


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _path(node: fx.Node) -> str:
    """The path of the innermost module that made the call; `trunk#1` for the second call of a module."""
    stack = node.meta.get("nn_module_stack") or {}
    path = ""
    for key, (name, _) in stack.items():
        last = name.removeprefix("module").removeprefix(".")
        call = re.search(r"@(\d+)$", str(key))
        if call:
            path = _number(path, last, int(call[1]))
        else:
            path = _extend(path, last)
    return path


def _extend(path: str, full: str) -> str:
    """`full` below `path`, whose segments may carry call numbers."""
    plain = re.sub(r"#\d+", "", path)
    plain_full = re.sub(r"@\d+", "", full)
    if plain and plain_full.startswith(plain + "."):
        return path + plain_full[len(plain) :]
    return path if plain_full == plain else plain_full


def _number(path: str, full: str, count: int) -> str:
    """Marks a later call of a module, unless the module that called it was itself called that often."""
    repeats = f"#{count}" in re.findall(r"#\d+", path)
    return _extend(path, full) if repeats else f"{_extend(path, full)}#{count}"


def _source(node: fx.Node) -> str:
    """File and line of the innermost frame that is not torch's own, as `name.py:12`."""
    frames = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
    return _innermost(frames)


def _innermost(frames: list[tuple[str, str]]) -> str:
    """Of files and lines, outermost first, the last that is not torch's own."""
    own = [f for f in frames if "/torch/" not in f[0] and not f[0].startswith("<")] or frames
    return f"{Path(own[-1][0]).name}:{own[-1][1]}" if own else "unknown"
