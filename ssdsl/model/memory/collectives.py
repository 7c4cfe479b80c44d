"""The collectives of an operator's kernel of parts."""

import math
from collections.abc import Iterator
from typing import NamedTuple

from ssdsl.model.memory.saved import local_shapes, observed
from ssdsl.model.ops.op import MEASURED, PartKernel
from ssdsl.model.ops.reader import Reader


class LocalCollective(NamedTuple):
    """The kind of a collective, the bytes of the tensor that a part sends, and whether the kernel computes
    meanwhile."""

    kind: str
    size_bytes: int
    overlaps: bool = False


def collectives(reader: Reader, kernel: PartKernel, parts: int, *, back: bool) -> Iterator[LocalCollective]:
    """The collectives in a kernel's forward, or `back` in its backward: as observed, or as its row says, for each
    element of the dimensions of the first operand that are neither fixed nor combined."""
    operator, graph = reader.operator, reader.graph
    given = kernel.backward if back else kernel.forward
    if given is MEASURED:
        shapes = [*local_shapes(reader, None), (parts,)]
        found = observed(reader, shapes, kernel)
        yield from (LocalCollective(e.what, e.bytes_at(shapes)) for e in (found.backward if back else found.forward))
        return
    first = operator.inputs[0]
    dims = [operator.dims[d] for axis in first.axes for d in axis]
    sizes = [reader.sizes[d] for axis in first.axes for d in axis]
    each = math.prod(n for n, d in zip(sizes, dims, strict=True) if not d.combined and not d.fixed)
    itemsize = graph.values[first.value].itemsize
    for c in given(operator, parts) if callable(given) else given:
        yield LocalCollective(c.kind, c.numbers * each * max(itemsize, c.width), c.overlaps)
