"""Registers ssdsl's own operators (`ssdsl::dropout`) with torch, by the functions of the runtime that programs call,
and shape rules that torch lacks."""

from collections.abc import Callable
from typing import Any

import torch

from ssdsl.runtime.kernels.compression import decode, encode
from ssdsl.runtime.kernels.experts import combine, count_rows, dispatch, expert_mm, routed_mm
from ssdsl.runtime.kernels.linear_scan import linear_scan
from ssdsl.runtime.random import distributions
from ssdsl.runtime.random.counter_rng import step_keys

LIBRARY: Any = torch.library.Library("ssdsl", "DEF")  # type: ignore[no-untyped-call]
Tensor = torch.Tensor
Function = Callable[..., Tensor]

# -- functions of the runtime: torch differentiates the operators that they are composed of ----------------------------

NOISE = "Tensor key, Tensor[] index, int[] sizes, str generator"
ATTENTION = (
    "Tensor query, Tensor key, Tensor value, Tensor? attn_mask, float dropout_p, bool is_causal, float? scale, "
    "bool enable_gqa"
)


def _of_distribution(name: str) -> Function:
    return lambda like, *rest: distributions.DISTRIBUTIONS[name](*rest)


def _within_band(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *more: Any) -> Tensor:
    """Attention whose mask hides the keys that are farther from a query's own than `band`, the last argument."""
    dropout_p, is_causal, scale, enable_gqa, _ = more
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )


def _attention_dropout(*given: Any) -> Tensor:
    """As the runtime's. The mask hides the keys that are farther from a query's own than `band`, the argument behind
    it."""
    return distributions.attention_dropout(*given[:12])


FUNCTIONS: dict[str, Function] = {
    "step_keys(Tensor seed_and_step, int count)": step_keys,
    "key(Tensor keys, int number)": lambda keys, number: keys[number],
    f"dropout(Tensor x, float p, {NOISE})": distributions.dropout,
    f"banded_attention({ATTENTION}, int[] band)": _within_band,
    f"attention_dropout({ATTENTION}, {NOISE.replace('key', 'draw_key')}, int[]? band=None)": _attention_dropout,
    "routed_mm(Tensor rows, Tensor weights, Tensor experts)": routed_mm,
    "expert_mm(Tensor rows, Tensor weights, Tensor counts)": expert_mm,
    "dispatch(Tensor rows, Tensor experts, Tensor own)": dispatch,
    "combine(Tensor rows, Tensor experts, Tensor own)": combine,
    "linear_scan(Tensor decay, Tensor update, Tensor? initial, int dim, bool before)": linear_scan,
    "count_rows(Tensor experts, Tensor own, SymInt each)": count_rows,
    "encode(Tensor x, int dim, SymInt length, SymInt? k=None)": encode,
    "decode(Tensor code, int dim, SymInt size, SymInt? k=None)": decode,
}
for distribution in distributions.DISTRIBUTIONS:
    form = f"{distribution}(Tensor? like, float first, float second, {NOISE}, ScalarType dtype)"
    FUNCTIONS[form] = _of_distribution(distribution)
for form, function in FUNCTIONS.items():
    LIBRARY.define(f"{form} -> Tensor")
    LIBRARY.impl(form.partition("(")[0], function, "CompositeImplicitAutograd")

# -- derivatives that a forward takes: operators replace them (capture/derivatives.py) ---------------------------------

LIBRARY.define("derivative(Tensor[] outputs, Tensor[] inputs, Tensor[] gradients, bool unused) -> Tensor[]")
torch.library.register_fake(
    "ssdsl::derivative", lambda outputs, inputs, *more: [torch.empty_like(x) for x in inputs], lib=LIBRARY
)


def _derivatives(
    info: Any, dims: Any, outputs: list[Tensor], inputs: list[Tensor], gradients: list[Tensor], unused: bool
) -> tuple[list[Tensor], list[int]]:
    """Many derivatives at once, under `torch.func.vmap`: of one output in several directions, or of several outputs,
    each of which depends on its own inputs only."""
    take = torch.ops.ssdsl.derivative
    if all(dim is None for dim in (*dims[0], *dims[1])):
        seeds = [g.movedim(dim, 0) for g, dim in zip(gradients, dims[2], strict=True)]
        each = zip(*(take(outputs, inputs, [*own], unused) for own in zip(*seeds, strict=True)), strict=True)
        return [torch.stack([*found]) for found in each], [0] * len(inputs)
    if None in (*dims[0], *dims[1]):
        raise NotImplementedError("derivatives by what all of them share")
    ends = [y.movedim(dim, 0) for y, dim in zip(outputs, dims[0], strict=True)]
    given = zip(gradients, dims[2], ends, strict=True)
    seeds = [g.expand(y.shape) if dim is None else g.movedim(dim, 0) for g, dim, y in given]
    return take(ends, inputs, seeds, unused), dims[1]


torch.library.register_vmap("ssdsl::derivative", _derivatives, lib=LIBRARY)

# -- connectionist temporal classification -----------------------------------------------------------------------------


def _ctc_shapes(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: object,
    target_lengths: object,
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[Tensor, Tensor]:
    """The loss of each sequence, and the alignments for backward, as if the longest target filled the tensor: its real
    length depends on a tensor's values."""
    batch = log_probs.shape[1:2] if log_probs.dim() == 3 else ()
    return log_probs.new_empty(batch), log_probs.new_empty(*batch, log_probs.shape[0], 2 * targets.shape[-1] + 1)


for name in ("aten::_ctc_loss", "aten::_ctc_loss.Tensor"):
    torch.library.register_fake(name, _ctc_shapes, allow_override=True)  # torch's own rule for one gives another size
