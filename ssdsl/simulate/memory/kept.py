"""The tensors that autograd keeps of a kernel until its backward has run.

For a kernel of one operator they are those of PyTorch. The backward of a kernel of several operators recomputes
pointwise results from the kernel's inputs, if keeping these takes no more memory: a GELU written out in single
operators keeps only its input. Results of a normalisation or a softmax, and dropout masks, are kept, in the dtype of
the kernel's result.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ssdsl.ir.function import Function, OpPart, saved_names
from ssdsl.ir.value import Name
from ssdsl.simulate.price.collectives import ProgramIndex, size_bytes
from ssdsl.simulate.price.fusion import Launch, is_cast, is_pointwise


@dataclass(frozen=True, slots=True)
class KeptTensors:
    """Kept values, and the bytes of further tensors, each with a description."""

    values: tuple[Name, ...]
    extras: tuple[tuple[str, int], ...]


def kept_of(facts: ProgramIndex, function: Function, launch: Launch) -> KeptTensors:
    """The tensors that one kernel of a function keeps; weights are among the values."""
    saved = [(op, facts.saved_by(op)) for op in launch.ops]
    extras = tuple((f"{op.operator} {e.what} {n}", e.size_bytes) for op, s in saved for n, e in enumerate(s.extras))
    values = dict.fromkeys(name for op, s in saved for name in saved_names(op, s))
    if len(launch.ops) > 1:
        return KeptTensors(tuple(_cheapest(facts, function, launch, values)), extras)
    return KeptTensors(tuple(values), extras)


def _cheapest(facts: ProgramIndex, function: Function, launch: Launch, values: Iterable[Name]) -> dict[Name, None]:
    """The values to keep: for each one that backward needs, either itself or the values from which it is recomputed,
    whichever takes less memory."""
    variables, stays = facts.variables(function), {p.var.name.value for p in function.prepared} | facts.stored
    makers = {v.name: op for op in launch.ops for v in op.results if is_pointwise(facts.operators[op.operator])}
    leaves = {v.name for v in launch.writes}
    base = launch.base
    # a value whose only use outside the kernel is a cast is kept as the cast: that tensor exists anyway
    casts = [op for op in launch.ops if is_cast(facts.operators[op.operator])]
    left = {base.get(op.reads[0], op.reads[0]): op.results[0].name for op in casts}
    left = {n: copy for n, copy in left.items() if n not in leaves and copy in leaves}
    found = {left.get(base.get(n, n), n): None for n in values if base.get(n, n) not in makers}
    for name in (n for n in values if base.get(n, n) in makers):
        roots = [n for n in _made_of(name, makers, base) if n not in found and n.value not in stays]
        own, again = size_bytes(variables[name]), sum(size_bytes(variables[n]) for n in roots)
        if own < again or (own == again and base.get(name, name) in leaves):
            found[name] = None
        else:
            found |= dict.fromkeys(roots)
    return found


def _made_of(name: Name, makers: Mapping[Name, OpPart], base: Mapping[Name, Name]) -> dict[Name, None]:
    maker = makers.get(base.get(name, name))
    if maker is None:
        return {name: None}
    return {n: None for read in maker.reads for n in _made_of(read, makers, base)}
