"""The row of connectionist temporal classification (Graves et al. 2006), which treats each sequence by itself.

torch has no shape rule for it (`library.py` gives it one), because it reads the length of the longest target from a
tensor's values. Only its second result depends on that, and only backward reads it.
"""

from ssdsl.model.dims.signature import Signature, parse_signature
from ssdsl.model.memory.saved_tensors import Saved, extra
from ssdsl.model.ops.families.whole import all_whole
from ssdsl.model.ops.op import Op
from ssdsl.model.ops.reader import Reader
from ssdsl.model.ops.typed_call import TypedCall


def ctc_loss(call: TypedCall) -> Signature:
    """Splits by sequences, if targets are padded to a batch and the result is all losses, or their sum."""
    if [len(s) for s in call.shapes] != [3, 2, 1, 1] or call.argument("reduction") == 1:
        return all_whole(call)
    return parse_signature(f"time! batch classes!, batch words!, batch, batch -> {'batch' if call.result else '_'}")


def ctc_loss_saves(reader: Reader) -> Saved | None:
    """The scores, the targets and the probability of each alignment up to each time; lengths are kept as numbers."""
    if not reader.operands("input_lengths"):
        return None
    scores, targets, batch = (reader.shape(reader.operand(n).axes) for n in ("log_probs", "targets", "input_lengths"))
    dtype = reader.value("log_probs").dtype
    found = reader.named("log_probs targets")
    found += extra("alignments", (*batch, scores[0], 2 * targets[-1] + 1), dtype)
    if reader.argument("zero_infinity"):
        return found + extra("losses", batch, dtype) + extra("infinite", batch, "bool")
    return found + (reader.named("result") if reader.argument("reduction") == 0 else extra("losses", batch, dtype))


OPS = (Op("aten::ctc_loss", ctc_loss, saved=ctc_loss_saves),)
