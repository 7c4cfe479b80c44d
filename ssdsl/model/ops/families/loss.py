"""The rows of losses: sums over all elements, or over the labels. `rewrite/rules.py` has turned means into sums."""

import functools
from collections.abc import Mapping

from ssdsl.model.dims.signature import Axis, Signature, axes, combined, free, signature, whole
from ssdsl.model.ops.families.elementwise import broadcast, broadcast_shape
from ssdsl.model.ops.op import Op, PartKernel, Rule
from ssdsl.model.ops.typed_call import TypedCall

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


CROSS_ENTROPY_PARTS = PartKernel(
    ("self", 1),
    "cross_entropy_parts({self}, {target}, {start}, {size}, {group}, {weight}, {reduction}, {ignore_index}, "
    "{label_smoothing})",
)
NLL_PART = PartKernel(("self", 1), "nll_part({self}, {target}, {start}, {size}, {weight}, {reduction}, {ignore_index})")

LOSSES = """
    mse_loss l1_loss smooth_l1_loss huber_loss soft_margin_loss kl_div binary_cross_entropy
    binary_cross_entropy_with_logits
""".split()

OPS = (
    *(Op(f"aten::{kind}", elementwise_loss) for kind in LOSSES),
    Op(
        "aten::cross_entropy_loss",
        _labelled(combined("vocab")),
        kernel=CROSS_ENTROPY_PARTS,
        chained=True,
        text=_cross_entropy_text,
    ),
    Op("aten::nll_loss_nd", _labelled(free("vocab")), kernel=NLL_PART),
)
