"""Consecutive positions of an axis that calls read from a tensor, or write to it."""

from collections.abc import Mapping, Sequence

from ssdsl.model.capture.call import CapturedCall, Tensor
from ssdsl.model.graph import Ref
from ssdsl.record import Record

SPLITS = ("split", "split_with_sizes", "chunk", "unsafe_chunk", "unbind", "tensor_split")


class Read(Record):
    """Consecutive positions of an axis; `selected`: of one position, whose axis is gone."""

    dim: int
    start: int
    size: int
    selected: bool = False


def place_in(call: CapturedCall, shape: Sequence[int]) -> Read | None:
    """The positions of a tensor of this shape that a select or a slice reads, or a write to these writes."""
    if call.target.namespace != "aten" or not shape:
        return None
    dim = call.argument("dim") if call.kind in ("select", "slice", "select_scatter", "slice_scatter") else None
    if dim is None:
        return None
    size = shape[dim]
    if call.kind.startswith("select"):
        return Read(dim=dim % len(shape), start=call.argument("index") % size, size=1, selected=True)
    start, end, step = (call.argument(word) for word in ("start", "end", "step"))
    places = range(size)[start:end:step]
    return Read(dim=dim % len(shape), start=places[0], size=len(places)) if step == 1 and places else None


def read_by(call: CapturedCall | None, value: str, tensors: Mapping[str, Tensor]) -> tuple[str, Read] | None:
    """The tensor that a result of a call is a part of, and the part; None if it is no part of one."""
    if call is None or call.target.namespace != "aten" or not call.args or not isinstance(call.args[0], Ref):
        return None
    source = call.args[0].value
    shape = tensors[source].shape
    if call.kind in ("select", "slice"):
        place = place_in(call, shape)
        return None if place is None else (source, place)
    if call.kind not in SPLITS:
        return None
    dim, number = call.argument("dim") % len(shape), call.outputs.index(value)
    if call.kind == "unbind":
        return source, Read(dim, number, 1, True)
    sizes = [tensors[o].shape[dim] for o in call.outputs]
    return source, Read(dim, sum(sizes[:number]), sizes[number])
