"""The rows of random operators: pure functions of a key, of logical positions and of the logical sizes.

`explicit_draws` rewrites a captured model's random operators as these; programs call the runtime's functions of the
same names. The positions of an axis are a tensor whose axis is that of the noise, so that an index splits both.
"""

from collections.abc import Sequence

from ssdsl.model.dims.signature import ONE, Axis, Letter, Signature, free, signature
from ssdsl.model.graph import Ref
from ssdsl.model.ops.families.attention_and_softmax import attention, attention_part_saves, flops_of_attention
from ssdsl.model.ops.op import Op
from ssdsl.model.ops.reader import TypedCall
from ssdsl.record import replace

DISTRIBUTIONS = "uniform normal log_normal exponential geometric cauchy integers bernoulli".split()


def noise(call: TypedCall) -> Signature:
    """One number for each element; each axis is that of its positions, and of `like`, if that is a tensor."""
    names = _axes(call.argument("sizes"))
    like = [names] if isinstance(call.argument("like"), Ref) else []
    return signature([*like, [], *([a] for a in names)], [names])


def _axes(sizes: Sequence[int]) -> list[Axis]:
    return [ONE if n == 1 else free(f"d{i}") for i, n in enumerate(sizes)]


def dropout(call: TypedCall) -> Signature:
    names = _axes(call.shape)
    return signature([names, [], *([a] for a in names)], [names])


def attention_dropout(call: TypedCall) -> Signature:
    """As attention, with positions of the batch axes, queries and keys; no kernel combines keys, so they stay whole."""
    plain = attention(call)
    given = [[a and tuple(map(_uncombined, a)) for a in p.axes] for p in plain.inputs]
    query, keys = given[:2]
    positions = [*query[:-1], keys[-2]]
    return signature([*given, [], *([a] for a in positions)], [list(p.axes) for p in plain.outputs])


def _uncombined(letter: Letter) -> Letter:
    return replace(letter, combined=False, fixed=True) if letter.combined else letter


CALL = "{key}, {index}, {sizes}, {generator}"
ATTENTION_CALL = (
    "attention_dropout({query}, {key}, {value}, {attn_mask}, {dropout_p}, {is_causal}, {scale}, {enable_gqa}, "
    + CALL.replace("key", "draw_key")
)
OPS = (
    Op("ssdsl::step_keys", "two! -> draws!", text="step_keys({seed_and_step}, {count})"),
    Op("ssdsl::key", "draws! -> _", text="{keys}[{number}]"),
    Op("ssdsl::dropout", dropout, linear_in=("x",), text=f"dropout({{x}}, {{p}}, {CALL})"),
    Op(
        "ssdsl::attention_dropout",
        attention_dropout,
        contraction=True,
        factors=3,
        backward_factor=1.25,
        fused=attention_part_saves,
        flops=flops_of_attention,
        windows=f"{ATTENTION_CALL}, {{band}}, {{parts}})",
        text=f"{ATTENTION_CALL})",
    ),
    *(
        Op(f"ssdsl::{name}", noise, stops_gradient=True, text=f"{name}({{first}}, {{second}}, {CALL}, {{dtype}})")
        for name in DISTRIBUTIONS
    ),
)
FUNCTIONS = ("step_keys", "dropout", "attention_dropout", *DISTRIBUTIONS)  # the runtime's, which programs call
