"""Connectionist temporal classification (Graves et al. 2006): each sequence of a batch by itself.

torch has no shape rule for it, because it reads the longest target from a tensor's values; the second result alone
depends on that, which only backward reads.
"""

import torch

from ssdsl.model.ops.measured import measured
from ssdsl.model.ops.op import Op
from ssdsl.model.ops.reader import Reader
from ssdsl.model.ops.typed_call import TypedCall
from ssdsl.model.ops.whole import all_whole
from ssdsl.model.saved_tensors import Saved, extra
from ssdsl.model.signature import Signature, parse_signature


def _shapes(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: object,
    target_lengths: object,
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss of each sequence, and what backward reads, as if a target were as long as all of the tensor."""
    batch = log_probs.shape[1:2] if log_probs.dim() == 3 else ()
    return log_probs.new_empty(batch), log_probs.new_empty(*batch, log_probs.shape[0], 2 * targets.shape[-1] + 1)


for name in ("aten::_ctc_loss", "aten::_ctc_loss.Tensor"):
    torch.library.register_fake(name, _shapes)


def ctc_loss(call: TypedCall) -> Signature:
    """Of a batch with padded targets; the losses of all sequences, or their sum."""
    if [len(s) for s in call.shapes] != [3, 2, 1, 1] or call.argument("reduction") == 1:
        return all_whole(call)
    return parse_signature(f"time! batch classes!, batch words!, batch, batch -> {'batch' if call.result else '_'}")


def ctc_loss_saves(reader: Reader) -> Saved:
    """Scores, targets and how likely each alignment is, up to each time; lengths are kept as numbers."""
    if not reader.operands("input_lengths"):
        return measured(reader)
    scores, targets, batch = (reader.shape(reader.operand(n).axes) for n in ("log_probs", "targets", "input_lengths"))
    dtype = reader.value("log_probs").dtype
    found = reader.named("log_probs targets")
    found += extra("alignments", (*batch, scores[0], 2 * targets[-1] + 1), dtype)
    if reader.argument("zero_infinity"):
        return found + extra("losses", batch, dtype) + extra("infinite", batch, "bool")
    return found + (reader.named("result") if reader.argument("reduction") == 0 else extra("losses", batch, dtype))


OPS = (Op("aten::ctc_loss", ctc_loss, saved=ctc_loss_saves),)
