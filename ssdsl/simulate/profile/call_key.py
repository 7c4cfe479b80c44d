"""The key of a call in a trace of PyTorch's profiler: torch's operator, and the shapes and types of its tensors.

    aten::addmm of 512:float32, 256x128:float32, 128x512:float32

A trace knows calls as eager PyTorch makes them, and a program's graph as torch.export does. So what a call is called
may differ: `relu_` is `relu`, and a view is one of many operators. Numbers among the arguments do not count, nor do
tensors without axes beside others: the profiler records `x * 2.0` with a tensor for the number.
"""

from collections.abc import Iterator, Mapping, Sequence

from ssdsl.analyse.program_index import ProgramIndex
from ssdsl.ir.function import Function, OpPart
from ssdsl.ir.value import Name, Var
from ssdsl.model.graph import Ref

Tensor = tuple[tuple[int, ...], str]  # its sizes, and its type
ALSO = {  # what eager PyTorch calls for an operator of a graph
    "aten::reshape": ("aten::view", "aten::_unsafe_view", "aten::flatten", "aten::unflatten", "aten::contiguous"),
    "aten::unsqueeze": ("aten::view", "aten::reshape"),
    "aten::squeeze": ("aten::view", "aten::reshape"),
    "aten::transpose": ("aten::t", "aten::permute", "aten::swapaxes", "aten::mT"),
    "aten::permute": ("aten::transpose",),
    "aten::split": ("aten::chunk", "aten::split_with_sizes", "aten::tensor_split", "aten::unbind"),
    "aten::split_with_sizes": ("aten::split", "aten::chunk"),
    "aten::sum": ("aten::mean",),  # a mean becomes a sum over the whole dimension (`model/rewrite`)
    "aten::slice": ("aten::narrow",),
    "aten::_to_copy": ("aten::to",),
    "aten::to": ("aten::_to_copy",),
    "aten::mm": ("aten::matmul",),
    "aten::bmm": ("aten::matmul",),
    "aten::matmul": ("aten::bmm", "aten::mm"),
    "aten::clone": ("aten::contiguous",),
    "aten::batch_norm": ("aten::native_batch_norm",),
}


def call_key(name: str, operands: Sequence[Tensor | Sequence[Tensor]]) -> str:
    """The words of a call. A list of tensors has no types: the profiler does not record them.

    >>> call_key("aten::mul", [((8, 4), "float32"), ((), "float64")])
    'aten::mul of 8x4:float32'
    >>> call_key("aten::cat", [[((8, 4), "float32"), ((8, 2), "float32")]])
    'aten::cat of (8x4, 8x2)'
    """
    if any(o and o[0] for o in operands):
        operands = [o for o in operands if o and o[0]]
    return f"{name} of {', '.join(_words(o) for o in operands) or 'nothing'}"


def _words(operand: Tensor | Sequence[Tensor]) -> str:
    match operand:
        case (tuple(sizes), str(dtype)):
            return f"{_shape(sizes)}:{dtype}"
        case _:
            return f"({', '.join(_shape(tensor[0]) for tensor in operand)})"


def _shape(sizes: Sequence[object]) -> str:
    return "x".join(map(str, sizes)) or "1"


def part_keys(facts: ProgramIndex, function: Function, op: OpPart) -> Iterator[str]:
    """The words by which a trace may know a part of an operator, the likeliest first; none for a kernel of the
    runtime's own."""
    if op.kernel.function:
        return
    operator = facts.operators[op.operator]
    variables = facts.variables(function)
    reads = dict(zip((o.value for o in operator.inputs), op.reads, strict=False))
    operands = [*_operands((*operator.args[1:], *(value for _, value in operator.kwargs)), reads, variables, facts)]
    name = ".".join(operator.target.split(".")[:1])
    for called in (name, f"{name}_", *ALSO.get(name, ())):
        yield call_key(called, operands)


def _operands(
    args: Sequence[object], reads: Mapping[str, Name], variables: Mapping[Name, Var], facts: ProgramIndex
) -> Iterator[Tensor | list[Tensor]]:
    for arg in args:
        if isinstance(arg, Ref):
            yield _tensor(arg.value, reads, variables, facts)
        elif isinstance(arg, tuple | list) and any(isinstance(item, Ref) for item in arg):
            yield [_tensor(item.value, reads, variables, facts) for item in arg if isinstance(item, Ref)]


def _tensor(value: str, reads: Mapping[str, Name], variables: Mapping[Name, Var], facts: ProgramIndex) -> Tensor:
    """The local sizes of what a part reads; a constant has those of the graph."""
    if value in reads:
        var = variables[reads[value]]
        return tuple(int(size.mean) for size in var.shape), var.dtype
    known = facts.program.graph.values[value]
    return known.shape, known.dtype
