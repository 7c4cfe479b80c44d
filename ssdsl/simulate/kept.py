"""What autograd keeps of a kernel until its backward has run.

Of one operator it is what PyTorch's own keeps. A kernel of several makes again what a pointwise operator in it made,
from what entered, where that takes no more memory: of a GELU that is written out only what enters. What a normalisation
or a softmax gave, and which numbers were dropped, it keeps, in the dtype in which they leave it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ssdsl.ir.function import Function, Op, saved_names
from ssdsl.ir.value import Name
from ssdsl.simulate.collectives import Facts, size_bytes
from ssdsl.simulate.fusion import Launch, is_cast, is_pointwise


@dataclass(frozen=True, slots=True)
class KeptTensors:
    """Values, and the bytes of further tensors by what they are."""

    values: tuple[Name, ...]
    extras: tuple[tuple[str, int], ...]


def kept_of(facts: Facts, function: Function, launch: Launch) -> KeptTensors:
    """What one kernel of a function keeps. Weights are named as any value."""
    saved = [(op, facts.saved_by(op)) for op in launch.ops]
    extras = tuple((f"{op.operator} {e.what} {n}", e.size_bytes) for op, s in saved for n, e in enumerate(s.extras))
    values = dict.fromkeys(name for op, s in saved for name in saved_names(op, s))
    if len(launch.ops) > 1:
        return KeptTensors(tuple(_cheapest(facts, function, launch, values)), extras)
    return KeptTensors(tuple(values), extras)


def _cheapest(facts: Facts, function: Function, launch: Launch, values: Iterable[Name]) -> dict[Name, None]:
    """Each value that backward needs, or what it is made of again."""
    variables, stays = facts.variables(function), {p.var.name.value for p in function.prepared} | facts.stored
    makers = {v.name: op for op in launch.ops for v in op.results if is_pointwise(facts.operators[op.operator])}
    leaves = {v.name for v in launch.writes}
    base = launch.base
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


def _made_of(name: Name, makers: Mapping[Name, Op], base: Mapping[Name, Name]) -> dict[Name, None]:
    maker = makers.get(base.get(name, name))
    if maker is None:
        return {name: None}
    return {n: None for read in maker.reads for n in _made_of(read, makers, base)}
