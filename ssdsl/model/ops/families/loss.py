"""The rows of losses: sums over all elements, or over the labels. `rewrite/rules.py` has turned means into sums.

torch has no shape rule for connectionist temporal classification (Graves et al. 2006; `library.py` gives it one),
because it reads the length of the longest target from a tensor's values. Only its second result depends on that, and
only backward reads it.
"""

import functools
from collections.abc import Mapping

from ssdsl.model.dims.signature import Axis, Signature, axes, combined, free, parse_signature, signature, whole
from ssdsl.model.memory.saved_tensors import Saved, extra
from ssdsl.model.ops.families.elementwise import broadcast, broadcast_shape
from ssdsl.model.ops.families.whole import all_whole
from ssdsl.model.ops.op import Op, PartKernel, Rule, call_of
from ssdsl.model.ops.reader import Reader, TypedCall

MEAN = 1  # the number of `reduction="mean"` in ATen
REDUCTIONS = {"0": "none", "1": "mean", "2": "sum"}


def elementwise_loss(call: TypedCall) -> Signature:
    """A loss summed over all its elements, or kept elementwise (`reduction="none"`)."""
    full = functools.reduce(broadcast_shape, call.shapes)
    out = broadcast(full, full) if call.result == full else []
    return signature([broadcast(s, full) for s in call.shapes], [out])


def _labelled(vocab: Axis) -> Rule:
    """The rule of a loss of [batch, vocab, ...] scores and labels: summed over the labels, or one for each.

    `vocab` is the axis of the classes: combined by a kernel, or free. Scores of a single token are not split.
    """

    def rule(call: TypedCall) -> Signature:
        scores, labels = call.inputs[:2]
        rank, is_scalar = len(scores.shape), not call.result
        names, at = axes(rank), 1 if rank > 1 else 0
        names[at] = classes = vocab if rank > 1 else whole("vocab")
        given = names if len(labels.shape) == rank else names[:at] + names[at + 1 :]
        out: list[Axis] = [] if is_scalar else given
        if call.argument("reduction") == MEAN:  # that could not be turned into a sum
            names, given = ([whole(a[0].name) for a in row] for row in (names, given))
            classes = whole("vocab")
        weights = [[classes]] if call.argument("weight") is not None else []
        return signature([names, given, *weights], [out])

    return rule


def _cross_entropy_text(a: Mapping[str, str]) -> str:
    weight = f", weight={a['weight']}" if a["weight"] != "None" else ""
    smoothing = f", label_smoothing={a['label_smoothing']}" if float(a["label_smoothing"]) else ""
    options = f'reduction="{REDUCTIONS[a["reduction"]]}", ignore_index={a["ignore_index"]}{weight}{smoothing}'
    return f"F.cross_entropy({a['self']}, {a['target']}, {options})"


CROSS_ENTROPY = call_of(
    "cross_entropy_parts", "self target | start size group weight reduction ignore_index label_smoothing"
)
NLL = call_of("nll_part", "self target | start size weight reduction ignore_index")

LOSSES = """
    mse_loss l1_loss smooth_l1_loss huber_loss soft_margin_loss kl_div binary_cross_entropy
    binary_cross_entropy_with_logits
""".split()


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


OPS = (
    *(Op(f"aten::{kind}", elementwise_loss) for kind in LOSSES),
    Op(
        "aten::cross_entropy_loss",
        _labelled(combined("vocab")),
        kernel=PartKernel(("self", 1), CROSS_ENTROPY),
        chained=True,
        text=_cross_entropy_text,
    ),
    Op("aten::nll_loss_nd", _labelled(free("vocab")), kernel=PartKernel(("self", 1), NLL)),
    Op("aten::ctc_loss", ctc_loss, saved=ctc_loss_saves),
)
