"""Compares the captured graph with the untouched module in one process: the loss, every gradient and every buffer of
one step.

Capture refuses what it can detect. But a forward can also depend on a global variable, the time or whether it is being
compiled; then the numbers differ, and no plan is the cause. Graph and module run nearly the same kernels, so only
rounding may differ: 1e-4 of a tensor's largest element, and 5e-2 if anything is computed in half precision. Whether a
weight gets a gradient at all is compared as well: an optimizer decays a weight whose gradient is zero, and skips one
without a gradient.

A graph that runs so also tells where the numbers of a step stop being finite.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from ssdsl.model.alter.run_graph import Values, run_operator
from ssdsl.model.capture.initial_state import constants_of
from ssdsl.model.capture.module_error import own_failure
from ssdsl.model.capture.preserve import module_kept
from ssdsl.model.checks.errors import CaptureDiffers
from ssdsl.model.graph import Graph, Operator, Origin
from ssdsl.model.load.model import Model
from ssdsl.model.load.unmaterialised import named_tensors
from ssdsl.model.products import step_flops
from ssdsl.record import Record
from ssdsl.runtime.random.single_device import Draws
from ssdsl.text.diagnostic import PlanError

ALLOWED = 1e-4
FLOOR = 1e-6  # of the largest gradient of the model: less than this is rounding
HALF = 500  # times as much is allowed in half precision
SEED_AND_STEP = (0, 0)  # of random numbers
SMALL = 4_000_000  # numbers of weights and buffers
QUICK = 1e10  # floating-point operations of a step: some tenths of a second on a core


class Checked(NamedTuple):
    """Whether the graph was compared with the module; `what` says what was compared, or why it was not."""

    is_compared: bool
    what: str

    def __str__(self) -> str:
        return f"capture: {'' if self.is_compared else 'not '}compared with the module{self.what}"


NO_NUMBERS = Checked(False, ": the weights have no numbers here")


class _Step(Record):
    """The results of one step of forward and backward. `state` are the buffers and frozen weights after it."""

    loss: torch.Tensor
    gradients: Values
    state: Values


def check_if_small(model: Model, graph: Graph) -> Checked:
    """As `check_capture`, for models so small that it takes no time; larger ones are checked before they train."""
    numbers = sum(t.numel() for t in (*model.module.parameters(), *model.module.buffers()))
    flops = sum(step_flops(graph).values())
    if numbers <= SMALL and flops <= QUICK:
        return check_capture(model, graph)
    if model.is_meta:
        return NO_NUMBERS
    reason = f"its weights and buffers are {numbers:,} numbers"
    if numbers <= SMALL:
        reason = f"its products take {flops / 1e9:.3g} GFLOP a step"
    return Checked(False, f": {reason}; `run` and `verify` compare it")


def check_capture(model: Model, graph: Graph) -> Checked:
    """Runs one step of the module and of the graph; raises PlanError for the first tensor in which they differ.

    Models on the meta device are not compared: they cannot run.
    """
    if model.is_meta or any(t.is_meta for t in model.batches[0].values()):
        return NO_NUMBERS
    module, found = _of_module(model), _of_graph(model, graph)
    half = HALF if any(v.dtype in ("bfloat16", "float16") for v in graph.values.values()) else 1
    _compare(model, "the loss", found.loss, module.loss, half * ALLOWED * abs(float(module.loss)))
    floor = FLOOR * max((_largest(g) for g in module.gradients.values()), default=0.0)
    for name in dict.fromkeys([*module.gradients, *found.gradients]):
        what = f"the gradient of `{name}`"
        if name not in module.gradients or name not in found.gradients:
            raise PlanError(_differs(model, what, *(_kind(s.gradients.get(name)) for s in (found, module))))
        expected = module.gradients[name]
        _compare(model, what, found.gradients[name], expected, half * (ALLOWED * _largest(expected) + floor))
    weights = dict(model.module.named_parameters())
    for name, tensor in module.state.items():
        what = f"frozen weight `{name}`" if name in weights else f"buffer `{name}`"
        _compare(model, what, found.state[name], tensor, half * ALLOWED * _largest(tensor))
    moved = len(weights.keys() & graph.updates.keys())
    buffers = len(module.state.keys() - weights.keys())
    counts = [(len(module.gradients), "gradient"), (moved, "frozen weight"), (buffers, "buffer")]
    words = ["loss", *(f"{n} {word}{'s' if n > 1 else ''}" for n, word in counts if n)]
    return Checked(True, f" once: {', '.join(words)}")


def _kind(gradient: torch.Tensor | None) -> str:
    if gradient is None:
        return "none"
    return "one" if gradient.any() else "zeros"


def _compare(model: Model, what: str, graph: torch.Tensor, module: torch.Tensor, allowed: float) -> None:
    got, expected = _real(graph), _real(module)
    error = (got - expected).abs()
    same = torch.isnan(got) & torch.isnan(expected) | (got == expected)  # infinities too
    error = error.masked_fill(same, 0.0).nan_to_num(nan=math.inf)
    if error.numel() and float(error.max()) > allowed:
        at = int(error.argmax())
        raise PlanError(_differs(model, what, *(f"{float(t.flatten()[at]):.6g}" for t in (got, expected))))


def _differs(model: Model, what: str, graph: str, module: str) -> CaptureDiffers:
    numbers = f"the graph gives {graph}, the module {module}"
    return CaptureDiffers(None, model.name, what, numbers, _reason(model))


def _reason(model: Model) -> str:
    """A hint at the cause: whether the module by itself gives the same loss twice."""
    first, second = (float(_of_module(model).loss) for _ in range(2))
    if first != second:
        return f"the module by itself gives {first:.9g} and then {second:.9g} for the same batch and weights"
    return "the module by itself gives the same loss every time"


def _of_module(model: Model) -> _Step:
    """One step of the module, which stays as it is."""
    named: Values = {n: p for n, p in model.module.named_parameters() if p.requires_grad}
    with module_kept(model.module), Draws(*SEED_AND_STEP, model.generator):
        loss = _run(model, "forward", lambda: model.compute(model.example()))
        gradients = _run(model, "backward", lambda: _gradients(loss, named))
        return _Step(loss.detach(), gradients, {n: t.detach().clone() for n, t in _untrained(model.module).items()})


def _run(model: Model, phase: str, function: Callable[[], Any]) -> Any:
    """The result of a phase of the module; raises PlanError if it fails: the forward too may fail where it has numbers,
    though it did not at capture."""
    try:
        return function()
    except Exception as error:  # the user's code may raise anything
        raise PlanError(own_failure(model, phase, error)) from error


def _of_graph(model: Model, graph: Graph) -> _Step:
    """One step of the graph. As in a plan, every weight that the graph trains has a gradient, of zeros if need be."""
    values = outside_values(model, graph)
    for operator in graph.operators:
        values |= run_operator(operator, values)
    named = {v.name: values[v.name] for v in graph.of(Origin.WEIGHT) if v.name in graph.learning}
    found = _gradients(values[graph.loss], named)
    gradients = {n: found.get(n, torch.zeros_like(w)) for n, w in named.items()}
    return _Step(values[graph.loss].detach(), gradients, _state(model, graph, values))


def _state(model: Model, graph: Graph, values: Values) -> Values:
    """The buffers and frozen weights after the step: the new value, if the graph computes one; else the tensor that
    operators read and may have changed in place; else, if none reads it, the module's own."""
    names: dict[int, list[str]] = {}
    for name, tensor in named_tensors(model.module).items():
        names.setdefault(id(tensor), []).append(name)
    found = {}
    for first, tensor in _untrained(model.module).items():
        own = names[id(tensor)]
        new = [graph.updates[n] for n in own if n in graph.updates] or [n for n in own if n in values]
        found[first] = values[new[0]].detach() if new else tensor
    return found


def _untrained(module: torch.nn.Module) -> Values:
    """Buffers and frozen weights, each under its first name."""
    frozen = {n: w for n, w in module.named_parameters() if not w.requires_grad}
    return frozen | dict(module.named_buffers())


def _gradients(loss: torch.Tensor, weights: Values) -> Values:
    if not weights:
        return {}
    found = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
    return {n: g.to_dense() for n, g in zip(weights, found, strict=True) if g is not None}


def outside_values(model: Model, graph: Graph) -> Values:
    """Inputs, and copies of weights, buffers and constants."""
    module = model.module
    state: dict[str, Any] = named_tensors(module) | constants_of(graph) | model.batches[0]
    state |= {v.name: torch.tensor(SEED_AND_STEP) for v in graph.of(Origin.SEED)}
    outside = [n for n, v in graph.values.items() if v.origin is not Origin.OPERATOR]
    return {n: state[n].detach().clone().requires_grad_(state[n].requires_grad) for n in outside}


def _largest(tensor: torch.Tensor) -> float:
    return float(_real(tensor).abs().max()) if tensor.numel() else 0.0


def _real(tensor: torch.Tensor) -> torch.Tensor:
    """The numbers of a tensor of any dtype as float64; complex ones as pairs."""
    return (torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor).double()


# -- where numbers stop being finite -----------------------------------------------------------------------------------


KINDS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"infinity": torch.isinf, "NaN": torch.isnan}


def first_not_finite(model: Model, graph: Graph) -> tuple[str, ...]:
    """A line for the first infinity and for the first NaN of the forward, with the weight, buffer or input that has
    it, or the operator that makes it and its place in the model's code."""
    found: dict[str, str] = {}
    with torch.no_grad():
        for where, tensor in _values(model, graph):
            for kind, has in KINDS.items():
                if kind not in found and tensor.is_floating_point() and bool(has(tensor).any()):
                    found[kind] = f"the first {kind} is in {where}"
            if "NaN" in found:
                break
    return tuple(found.values())


def _values(model: Model, graph: Graph) -> Iterator[tuple[str, torch.Tensor]]:
    """All tensors of the forward, in order, each with its place."""
    values = outside_values(model, graph)
    yield from ((f"`{name}`", tensor) for name, tensor in values.items())
    for operator in graph.operators:
        results = run_operator(operator, values)
        values |= results
        yield from ((_place(operator), tensor) for tensor in results.values())


def _place(operator: Operator) -> str:
    module = f" in module `{operator.path}`" if operator.path else ""
    return f"the result of `{operator.kind}`{module}, {operator.source}"
