"""Casts operators of a graph to other floating types: the model that a plan with `precision OPS to bf16` trains.

An operator in a type reads its floating operands in it, and what others read of its results is cast back. Operators
behind it that only move elements pass on what they read. A tensor is cast to the narrower of two types where it is
made, and to the wider one where it is read, so that the narrow one travels. Weights stay in their own type; their
gradients are those of the casts, which are in it again: they are added up in it.

    y = linear x w          x_to_bfloat16 = _to_copy x      w_to_bfloat16 = _to_copy w
    z = relu y              y = linear x_to_bfloat16 w_to_bfloat16
                            y_to_float32 = _to_copy y       z = relu y_to_float32

The results of a step, and the running statistics that an operator changes in place, keep their types.
"""

from collections.abc import Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import prod
from typing import Any

from ssdsl.model.capture.sparse_gradients import adds_sparse
from ssdsl.model.graph import (
    ITEMSIZE,
    Graph,
    Operand,
    Operator,
    Origin,
    Ref,
    Stage,
    Value,
    dims_of,
    renamed,
    stage_of,
)
from ssdsl.model.ops.rows import ROWS
from ssdsl.model.target import SchemaParameter, Target, TorchWord
from ssdsl.record import replace

CAST = "aten::_to_copy"
TARGET = Target(
    CAST,
    (
        SchemaParameter("self"),
        *(SchemaParameter(name, optional=True) for name in ("dtype", "layout", "device", "pin_memory")),
        SchemaParameter("non_blocking", False, optional=True),
        SchemaParameter("memory_format", optional=True),
    ),
)
FLOATS = ("float64", "float32", "bfloat16", "float16")


class CannotCompute(Exception):
    """An operator does not compute in a type, for a `reason` that torch gives."""

    def __init__(self, operator: Operator, reason: str) -> None:
        self.operator, self.reason = operator, reason


def recast(graph: Graph, types: Mapping[str, str]) -> Graph:
    """The graph in which these computing operators, by their names, have these types; not observed yet. Raises
    CannotCompute."""
    casting = _Casting(graph, types)
    for operator in graph.operators:
        casting.add(operator)
    return casting.done()


@dataclass(slots=True)
class _Casting:
    """The operators and values so far. `casts` has the name of each cast tensor: by the tensor, the type, and the
    module of its readers, unless it is cast where it is made."""

    graph: Graph
    types: Mapping[str, str]
    operators: list[Operator] = field(default_factory=list)
    values: dict[str, Value] = field(default_factory=dict)
    casts: dict[tuple[str, str, str], str] = field(default_factory=dict)
    made: dict[Hashable, tuple[str, ...]] = field(default_factory=dict)  # the types of results of equal calls
    makers: dict[str, Operator] = field(default_factory=dict)
    behind: dict[str, list[Operator]] = field(default_factory=dict)  # casts where a tensor is made, by its maker

    def __post_init__(self) -> None:
        self.values = dict(self.graph.values)

    def add(self, operator: Operator) -> None:
        """Adds an operator that reads what it needs, and the casts before it. Raises CannotCompute."""
        dtype = self.types.get(operator.name) if operator.kind != "_to_copy" else None
        floats = [o for o in operator.inputs if self._is_cast_of(operator, o)]
        cast = [o for o in floats if dtype is not None and self.values[o.value].dtype != dtype]
        if any(adds_sparse(operator, o.value) for o in cast):
            raise CannotCompute(operator, "its gradient is sparse (`sparse=True`), which torch does not cast")
        made: tuple[str, ...] | None = None
        if dtype is None and operator.row.regroups and any(self._has_changed(o.value) for o in floats):
            with suppress(CannotCompute):
                made = self._types_of(operator, operator, None)
        if made is not None:
            changed = operator
        else:
            reads = {o.value: self._read(operator, o, dtype or self.graph.values[o.value].dtype) for o in floats}
            changed = replace(renamed(operator, reads), signature=None, observed=None)  # to be observed again
            made = None if dtype is None else self._types_of(operator, changed, dtype)
        for operand, new in zip(operator.outputs, made or (), strict=made is not None):
            self.values[operand.value] = replace(self.values[operand.value], dtype=new)
        self.operators.append(changed)
        self.makers |= {o.value: changed for o in operator.outputs}

    def done(self) -> Graph:
        """The graph with the casts; its results are in their own types."""
        graph = self.graph
        results = {name: self._result(name) for name in graph.results | {graph.loss}}
        operators = tuple(one for o in self.operators for one in (o, *self.behind.get(o.name, ())))
        return replace(
            graph,
            operators=operators,
            values=self.values,
            loss=results[graph.loss],
            updates={buffer: results[value] for buffer, value in graph.updates.items()},
            outputs={name: results[value] for name, value in graph.outputs.items()},
        )

    def _is_cast_of(self, operator: Operator, operand: Operand) -> bool:
        """Whether an operand may be cast: a floating tensor, and if the operator has running statistics, the first."""
        is_first = operand is operator.inputs[0] or not operator.statistics
        return self.graph.values[operand.value].dtype in FLOATS and is_first

    def _has_changed(self, value: str) -> bool:
        return self.values[value].dtype != self.graph.values[value].dtype

    def _result(self, value: str) -> str:
        maker = self.makers.get(value)
        if maker is None or not self._has_changed(value):
            return value
        operand = next(o for o in maker.outputs if o.value == value)
        return self._read(maker, operand, self.graph.values[value].dtype)

    def _read(self, reader: Operator, operand: Operand, dtype: str) -> str:
        """The name of a tensor in a type, for an operator that reads it, or a result for the step."""
        value = self.values[operand.value]
        if value.dtype == dtype:
            return operand.value
        maker = self.makers.get(operand.value)
        is_narrower = ITEMSIZE.get(dtype, 4) < value.itemsize
        at_maker = maker if is_narrower or maker is reader else None
        key = operand.value, dtype, "" if at_maker is not None else f"{reader.path} {reader.stage}"
        if key not in self.casts:
            self.casts[key] = self._cast(value, dtype, reader, operand, at_maker)
        return self.casts[key]

    def _cast(self, value: Value, dtype: str, reader: Operator, operand: Operand, maker: Operator | None) -> str:
        """Inserts a cast of a tensor, behind its maker if that is given, else before the reader."""
        beside = reader
        if maker is not None:
            beside, operand = maker, next(o for o in maker.outputs if o.value == value.name)
        stage = stage_of(value, self.makers.get(value.name))
        dims, axes = dims_of(beside, operand)
        made = self._free(f"{value.name if value.origin is Origin.OPERATOR else beside.name}_to_{dtype}")
        words = (("dtype", TorchWord("dtype", dtype)),)
        inputs = () if stage is Stage.CONSTANT else (Operand(value.name, axes),)
        path, source = beside.path if stage is Stage.COMPUTE else "", beside.source
        operator = Operator(
            *(made, "_to_copy", CAST, path, source, stage, (TARGET, Ref(value.name)), words),
            *(inputs, (Operand(made, axes),), tuple(dims), ROWS[CAST], prod(value.shape)),
        )
        self.values[made] = replace(value, name=made, origin=Origin.OPERATOR, dtype=dtype)
        self.makers[made] = operator
        if maker is not None:
            self.behind.setdefault(maker.name, []).append(operator)
        else:
            self.operators.append(operator)
        return made

    def _free(self, name: str) -> str:
        name, number = name.replace(".", "_"), 1
        found = name
        while found in self.values:
            number += 1
            found = f"{name}_{number}"
        return found

    def _types_of(self, operator: Operator, changed: Operator, dtype: str | None) -> tuple[str, ...]:
        """The types of an operator's results, as torch shows them on tensors without numbers. Raises CannotCompute if
        the operator does not take the types of what it reads."""
        import torch

        from ssdsl.model.observe.call import empty, fake_tensors, results_of

        reads = dict.fromkeys(changed.refs())
        key = (operator.signature, dtype, *(self.values[name].dtype for name in reads))
        if operator.signature is None or key not in self.made:
            with fake_tensors(like_cpu=False):
                tensors: dict[str, Any] = {name: empty(self.values[name]) for name in reads}
                try:
                    found = results_of(changed, tensors)
                except (RuntimeError, TypeError) as error:
                    raise CannotCompute(operator, str(error).split("\n")[0]) from error
            self.made[key] = tuple(str(t.dtype).removeprefix("torch.") for t in found if isinstance(t, torch.Tensor))
        return self.made[key]
