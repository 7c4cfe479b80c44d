"""The precision in which a training step computes; the same step in another precision, without a change of the model;
and a model whose weights, inputs and computed scalars are perturbed by one unit in the last place."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ssdsl.model.load.model import Model
from ssdsl.record import replace
from ssdsl.runtime.program.initial_state import InitialState
from ssdsl.runtime.program.program import CompiledProgram
from ssdsl.runtime.program.table import BatchInput, RequestedOutput, SignalEntry, TransferEntry
from ssdsl.runtime.random.single_device import Draws

Entry = TypeVar("Entry", BatchInput, RequestedOutput, TransferEntry)
COMPLEX = {torch.float64: torch.complex128, torch.float32: torch.complex64}


def precision(model: Model) -> torch.dtype:
    """The coarsest floating-point type that an operator of a training step returns; bfloat16 under autocast."""
    module = copy.deepcopy(model.module)
    with Draws(0, 0, model.generator), _Seen() as seen:
        model.compute(model.batches[0], module)
    seen.types.update(p.dtype for p in module.parameters() if p.is_floating_point())
    return max(seen.types, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float32)


class _Seen(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the floating-point types of operators' results."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.types: set[torch.dtype] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        self.types.update(t.dtype for t in tree_leaves(result) if isinstance(t, torch.Tensor) and t.is_floating_point())
        return result


def in_type(model: Model, dtype: torch.dtype) -> Model:
    """A copy whose weights, buffers and inputs have this type instead of their floating-point types."""
    module = copy.deepcopy(model.module)._apply(lambda t: converted(t, dtype))  # type: ignore[no-untyped-call]
    batches = tuple({name: converted(t, dtype) for name, t in batch.items()} for batch in model.batches)
    return replace(model, module=module, batches=batches)


def program_in(program: CompiledProgram, dtype: torch.dtype) -> CompiledProgram:
    """The program of a model in this type instead of its own floating-point types; the code is the same."""
    state = program.weights
    names = [*state.tensors, *(state.recipes.weights if state.recipes is not None else ())]
    weights = InitialState({name: converted(state[name], dtype) for name in names}, names=state.names)
    batches = [{name: converted(t, dtype) for name, t in batch.items()} for batch in program.batches]
    table = program.table
    inputs = {name: _stated(entry, dtype) for name, entry in table.inputs.items()}
    messages = tuple(m if isinstance(m, SignalEntry) else _stated(m, dtype) for m in table.messages)
    outputs = tuple(_stated(entry, dtype) for entry in table.outputs)
    return CompiledProgram(
        replace(table, inputs=inputs, outputs=outputs, messages=messages), program.roles, weights, batches
    )


def _stated(entry: Entry, dtype: torch.dtype) -> Entry:
    """An entry of the table with floating-point types replaced."""
    return replace(entry, dtype=str(_instead(getattr(torch, entry.dtype), dtype)).removeprefix("torch."))


def converted(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The tensor with its floating-point type replaced."""
    return tensor.to(_instead(tensor.dtype, dtype))


@contextmanager
def computing_in(dtype: torch.dtype) -> Iterator[None]:
    """A context in which this thread computes everything in this type: casts to other types and autocast do nothing."""
    with made_in(dtype), ComputedIn(dtype):
        yield


@contextmanager
def made_in(dtype: torch.dtype) -> Iterator[None]:
    """A context in which new tensors without an explicit type have this type, in every thread."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class ComputedIn(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs operators in this type that are asked for a floating-point type, or given one."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.dtype = dtype

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        writes = _writes(function)
        args = [self._changed(a, writes) for a in args]
        result = function(*args, **{n: self._changed(a, writes) for n, a in (kwargs or {}).items()})
        return result if writes else self._changed(result, writes)

    def _changed(self, value: Any, writes: bool) -> Any:
        """An operand or result in this type; tensors that an operator writes to are not converted."""
        if isinstance(value, torch.Tensor):
            return value if writes or value.dtype == self.dtype else converted(value, self.dtype)
        if isinstance(value, torch.dtype):
            return _instead(value, self.dtype)
        return type(value)(self._changed(v, writes) for v in value) if isinstance(value, list | tuple) else value


def _instead(of: torch.dtype, dtype: torch.dtype) -> torch.dtype:
    if of.is_complex:
        return COMPLEX[dtype]
    return dtype if of.is_floating_point else of


@cache
def _writes(function: Any) -> bool:
    """Whether an operator changes an argument in place, which must then be that tensor and no copy."""
    return any(a.alias_info is not None and a.alias_info.is_write for a in function._schema.arguments)


# -- other last digits -------------------------------------------------------------------------------------------------


def nudged(model: Model, seed: int, precision: torch.dtype) -> Model:
    """A copy with each weight and input element one unit of `precision` up or down, at random.

    Whole numbers are not changed: among inputs they are labels, indices or masks; among weights the initial value of a
    scale, or a sign that an orthogonal matrix keeps there. A tensor in a coarser type than `precision` changes by its
    own unit.
    """
    draw = torch.Generator().manual_seed(seed)
    module = copy.deepcopy(model.module)
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(_nudged(weight, draw, precision))
        batches = tuple({name: _nudged(t, draw, precision) for name, t in batch.items()} for batch in model.batches)
    return replace(model, module=module, batches=batches)


def real_of(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor with the real and the imaginary parts of complex numbers along a last axis; any other as it is."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _nudged(tensor: torch.Tensor, draw: torch.Generator, precision: torch.dtype) -> torch.Tensor:
    if tensor.is_complex():
        return torch.view_as_complex(_nudged(real_of(tensor), draw, precision))
    if not tensor.is_floating_point() or tensor.layout is not torch.strided:
        return tensor  # a sparse gradient is made of rows that have been moved
    return torch.where(tensor == tensor.round(), tensor, _moved(tensor, draw, precision))


def _moved(tensor: torch.Tensor, draw: torch.Generator, precision: torch.dtype) -> torch.Tensor:
    """`x` plus or minus `eps 2^floor(log2 |x|)`, the distance to the next number of that precision."""
    eps = max(torch.finfo(precision).eps, torch.finfo(tensor.dtype).eps)
    exact = tensor.detach().double()
    unit = torch.ldexp(torch.full_like(exact, eps), torch.frexp(exact).exponent - 1)
    sign = torch.randint(0, 2, exact.shape, generator=draw).to(exact.device) * 2 - 1
    limit = torch.finfo(tensor.dtype).max
    moves = exact.isfinite() & (exact != 0)
    return torch.where(moves, (exact + sign * unit).clamp(-limit, limit), exact).to(tensor.dtype)


class RoundedScalars(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Moves every scalar that an operator computes one unit of its type up or down, at random.

    A tensor's elements round otherwise where weights are nudged. A number may be too coarse for that: `1 - loss / 2`
    of a loss near two has digits of its own, which other weights leave as they are and another order of sums does not.
    A number that is an element of an operand, but for its sign, is chosen and not computed, and so exact: a maximum or
    a median, whose backward looks for that very element. With `elements`, each element of each result moves as well.
    """

    def __init__(self, seed: int, elements: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.draw, self.elements = torch.Generator().manual_seed(seed), elements

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        is_new = all(r.alias_info is None for r in function._schema.returns)
        if not is_new or not isinstance(result, torch.Tensor) or not result.is_floating_point():
            return result
        if result.dim():
            return _nudged(result, self.draw, result.dtype).to(result.device) if self.elements else result
        if _is_chosen(result, (args, kwargs)):
            return result
        return _moved(result, self.draw, result.dtype).to(result.device)


def _is_chosen(result: torch.Tensor, operands: Any) -> bool:
    """Whether a number is an element of an operand, up to its sign."""
    tensors = (t for t in tree_leaves(operands) if isinstance(t, torch.Tensor) and t.layout is torch.strided)
    return any(bool((t.abs() == result.abs()).any()) for t in tensors if t.is_floating_point())
