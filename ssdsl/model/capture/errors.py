"""Diagnostics of capture: a loaded model cannot become a graph, draws wrong random numbers, or has no loss."""

from typing import Any, Self

from ssdsl.model.capture.call import CapturedCall
from ssdsl.text.diagnostic import Diagnostic

CONTROL_FLOW = "replace control flow that depends on tensor values by tensor operations such as `torch.where`"
NUMBER = "keep it a tensor: do not read its value by `.item()`, `float(x)` or `.tolist()`, nor print it"
GENERATOR = "draw without a generator: `--seed` determines the numbers"
NUMPY = "compute with torch in place of numpy: a graph has only operators of torch"
MASK = (
    "keep the shape, and apply the mask as a factor: `torch.where(mask, x, 0)` in place of `x[mask]`\n"
    "for a mean, divide the sum by `mask.sum()`; for a loss, mark targets that do not count by `ignore_index`"
)
POSITION = (
    "keep it a tensor, and write at positions that are a tensor too. For a buffer of K rows and n new ones:\n"
    "`where = (self.{buffer} + torch.arange(n)) % K`, `self.queue.index_copy_(0, where, rows)` in place of a slice,\n"
    "and `self.{buffer}.add_(n).remainder_(K)` to move it on"
)
MINLENGTH = "give it a `minlength`: so many counts, and no number may be as large"
INSTEAD = {  # by operator
    "index": MASK,
    "masked_select": MASK,
    "nonzero": MASK,
    "_local_scalar_dense": NUMBER,
    "bincount": MINLENGTH,
}


class CaptureFailed(Diagnostic):
    """`torch.export` could not turn the module into a graph.

    ssdsl captures the module with `torch.export.export(strict=False)`, which follows one run of `forward` on the
    example batch. It stops at control flow that depends on the values of tensors (`if x.sum() > 0`, `.item()`), at
    shapes that depend on them (`x[x > 0]`), and at operators that torch.export does not know. Rewrite that place with
    tensor operations (`torch.where`), or move it out of the module. The number of elements that a mask selects depends
    on data; a sum over all elements, with the others set to zero, gives the same number and has a fixed shape.
    """

    code = "E0330"
    title = "model `{model}` cannot be captured"
    note = "{reason}"
    model: str
    reason: str
    change: str = CONTROL_FLOW


class OfCall(Diagnostic):
    """A mistake in a call of an operator."""

    note = "called in module `{path}` at {source}"
    kind: str
    path: str
    source: str

    @classmethod
    def of(cls, call: CapturedCall, **facts: Any) -> Self:
        """The mistake in a call, with further facts."""
        return cls(None, call.kind, call.path or "the model", call.source, **facts)


class RandomOperator(OfCall):
    """The model draws random numbers that a part of a tensor could not draw by itself.

    A random number of a program is a function of the seed, the step, the operator and the position of the element, so a
    part draws the numbers of its slice. Dropout, `rand`, `randn`, `randint`, `randperm`, `bernoulli`, `multinomial`,
    `exponential_` and most others are such functions. Poisson, binomial and gamma draws are not, because each takes a
    random number of random words; nor is dropout inside recurrent layers of packed sequences.
    """

    code = "E0332"
    title = "operator `{kind}` draws random numbers that are not a function of their positions"
    help = "draw others, such as `torch.rand` or `torch.randn`, or give the numbers to the model as an input"


class StatisticsRead(OfCall):
    """A model reads the running statistics of a batch norm after the batch norm has changed them.

    The batch norm changes them in place, in every step. An operator that reads them before it, or in a module in eval
    mode, gets their old values.
    """

    code = "E0367"
    title = "operator `{kind}` reads `{buffer}` after a batch norm has changed it"
    help = "compute what it needs from the activations, or from a copy made before the batch norm: `.clone()`"
    buffer: str


class NotALoss(Diagnostic):
    """The forward returns no loss, that is one scalar that depends on the weights.

    The loss is the result of the forward, or its `.loss` or `["loss"]`, or the only scalar in a tuple or a dictionary.
    If it is elsewhere, say where: by a name, by a position, or by a function of the outputs and the batch. A model's
    function returns this as its fourth result; in Python it is `loss=`. Models of `transformers` return a loss if the
    batch has `labels`.
    """

    code = "E0333"
    title = "model `{model}` returns {what}, not a loss"
    help = (
        "return one scalar tensor that depends on the weights, or say where it is, in the fourth result of the model's "
        "function or by `loss=`: a name, a position, or a function of outputs and batch"
    )
    model: str
    what: str


class FailsInHalf(Diagnostic):
    """The model runs in float32 and fails in half precision, because it also makes or keeps tensors in float32.

    `precision="bf16"` converts all weights, buffers and floating inputs. A tensor that the forward makes itself
    (`torch.arange(n, dtype=torch.float32)`, the angles of RoPE), or that is a plain attribute, stays in float32, and
    most operators do not take two types. `torch.autocast` leaves weights in float32 and casts around each operator.
    """

    code = "E0347"
    title = 'model `{model}` fails with precision="{precision}": {error}'
    note = (
        "weights, buffers and floating inputs are {precision} then; the model also makes or keeps tensors in float32, "
        "and it runs if all are float32\n{detail}"
    )
    help = (
        'give `autocast=torch.bfloat16` in place of `precision="{precision}"`: weights then stay in float32, and '
        "torch.autocast casts\nor make these tensors in the type of the input: `.to(x.dtype)`"
    )
    model: str
    precision: str
    error: str
    detail: str
