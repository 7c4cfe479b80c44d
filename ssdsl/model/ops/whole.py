"""The rule that is always right: every axis of every tensor is whole, so that each device computes all of it."""

from ssdsl.model.ops.typed_call import TypedCall
from ssdsl.model.signature import Signature, signature, whole_axes


def all_whole(call: TypedCall) -> Signature:
    """A signature in which nothing can be split."""
    given = [whole_axes(len(s), f"in{k}_") for k, s in enumerate(call.shapes)]
    return signature(given, [whole_axes(len(t.shape), f"out{k}_") for k, t in enumerate(call.outputs)])
