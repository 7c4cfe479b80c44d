"""The key of an instruction in a profile: words that are the same in every program that runs the same kernel.

    torch.addmm(%0, %1, %2) of 512:f32*, 256x128:f32*, 128x512:f32*

The words are the call in the generated program, with everything that changes its cost (attributes, local shapes), then
the operands' local shapes and dtypes; operands with a gradient have a star. Names of a plan do not occur: an axis is
written as the number of its devices, an index in time as `part`. Nor does the order of operands in memory. If the
generated call changes, its words stay (`CALLS`), so that profiles of users remain valid. A compiled run has words as a
whole (`_run_key`).
"""

import hashlib
import math
import re
from collections.abc import Sequence

from ssdsl.analyse.program_index import ProgramIndex
from ssdsl.codegen.expressions import conversion_text, expression
from ssdsl.ir.comm import KeepFirst
from ssdsl.ir.function import Called, Conversion, Function, Instr, OpPart, Write, reads_of
from ssdsl.ir.value import Name, Var
from ssdsl.record import replace
from ssdsl.simulate.price.fusion import is_read_outside

CALLS = {  # the words of kernels that take other arguments by now than when profiles were recorded
    "embedding_part": "embedding_part({indices}, {weight}, start={start})",
    "gather_part": "gather_part({self}, {dim}, {index}, {start})",
    "nll_part": "nll_part({self}, {target}, {start}, {weight}, {reduction}, {ignore_index})",
    "linear_scan": "linear_scan({decay}, {update}, {initial}, dim={dim}, before={before})",
    "routed_mm": "routed_mm({rows}, {weights}, {experts}, start={start})",
    "F.scaled_dot_product_attention": "F.scaled_dot_product_attention({query}, {key}, {value}, {attn_mask}, "
    "scale={scale}, enable_gqa={enable_gqa})",
}


def kernel_key(facts: ProgramIndex, function: Function, called: Called) -> str:
    """The words of one instruction of a function, or of a compiled run."""
    return _run_key(facts, function, called) if isinstance(called, tuple) else _key(facts, function, called)


def _key(facts: ProgramIndex, function: Function, instr: Instr) -> str:
    sizes, variables = dict(function.submesh.axes), facts.variables(function)
    reads = [f"%{n}" for n, _ in enumerate(reads_of(instr))]

    def group(axes: tuple[str, ...]) -> str:
        return f"of{math.prod(sizes.get(a, 1) for a in axes)}"

    match instr:
        case OpPart():
            text = expression(facts.operators[instr.operator], replace(instr, orders=()), reads, group, CALLS)
            text = f"halves {text}" if instr.sides is not None else text
        case Conversion(forward=(KeepFirst(in_time=True),)):
            text = f"first_time({reads[0]})"
        case Conversion():
            text = conversion_text(instr, reads[0], group, reads[1:])
            text = re.sub(r"\b\w+=", "", text) if text.startswith("take") else text
        case Write():
            text = f"write({reads[0]})"
    for index in function.time:
        text = re.sub(rf"\b(n_)?{index.name}\b", r"\1part", text)
    return f"{text} of {', '.join(_type(variables[r]) for r in reads_of(instr)) or 'nothing'}"


def _run_key(facts: ProgramIndex, function: Function, ops: Sequence[OpPart]) -> str:
    """The words of a compiled run:

        compiled layer_norm to gelu: 9 operators, 5f0c2a8e41d7 of 2x64x128:f32*, 128:f32*

    The digest is of the operators' words, of what each of them reads, and of which results leave the run."""
    inside = frozenset(op.operator for op in ops)
    numbers: dict[Name, int] = {}
    made = {v.name for op in ops for v in op.results}
    words = []
    for op in ops:
        read = [numbers.setdefault(name, len(numbers)) for name in op.reads]
        left = [is_read_outside(function, v.name, inside) for v in op.results]
        numbers |= {v.name: len(numbers) + n for n, v in enumerate(op.results)}
        words.append((_key(facts, function, op), read, left))
    digest = hashlib.sha256(repr(words).encode()).hexdigest()[:12]
    kinds, variables = [facts.operators[op.operator].kind for op in ops], facts.variables(function)
    reads = [_type(variables[name]) for name in numbers if name not in made]
    return f"compiled {kinds[0]} to {kinds[-1]}: {len(ops)} operators, {digest} of {', '.join(reads) or 'nothing'}"


def _type(var: Var) -> str:
    shape = "x".join(str(size.mean) for size in var.shape) or "1"
    return f"{shape}:{var.dtype}{'*' if var.gradient is not None else ''}"
