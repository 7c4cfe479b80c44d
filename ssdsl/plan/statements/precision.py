"""`precision OPS to bf16`: the types in which operators compute. It changes what is computed: the model that a plan
trains is then the captured one with these casts (`model/alter/recast.py`), on one device as on many."""

from ssdsl.lang import nodes
from ssdsl.lang.formatter.spell import spell
from ssdsl.model.alter.recast import CannotCompute
from ssdsl.plan.context import Context
from ssdsl.plan.errors.traced import Conflict, Traced
from ssdsl.plan.errors.values import Wanted, required
from ssdsl.plan.eval.expressions import evaluate
from ssdsl.plan.eval.select import require_some, require_whole
from ssdsl.plan.facts import Facts
from ssdsl.plan.model_index import ModelIndex
from ssdsl.plan.plan import Precision
from ssdsl.plan.values import is_selection
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.edits import TextEdit

TYPES = {"bf16": "bfloat16", "fp32": "float32"}
WORDS = {dtype: word for word, dtype in TYPES.items()}
REASONS = {
    "fp16": "its small gradients need a loss scale, which a whole model in it has: --precision fp16",
    "fp8": "torch only multiplies in it (torch._scaled_mm), with scales that follow from the numbers of a tensor",
}  # of types in which torch computes, too


def precision(ctx: Context, s: nodes.PrecisionStatement) -> None:
    """Adds the fact for those of the operators that depend on weights. Raises PlanError for another type, and for parts
    of operators."""
    if (dtype := TYPES.get(s.dtype.text)) is None:
        raise PlanError(NoSuchPrecision(s.dtype.span, s.dtype.text, REASONS.get(s.dtype.text, ""), tuple(TYPES)))
    value = required(evaluate(ctx, s.operators), is_selection, s.operators, Wanted.OPERATORS)
    require_whole(ctx, value, s.operators, "precision")
    operators = ctx.model.only_compute(value.operators - ctx.model.added)
    require_some(ctx, operators, value.of_items, s.operators, "precision")
    ctx.facts.precisions.append(Precision(operators, dtype, spell(s.operators), s.span))


def types_of(model: ModelIndex, facts: Facts) -> dict[str, str]:
    """The types that statements give operators, by name. Raises PlanError if some have two."""
    types: dict[str, str] = {}
    for stated in facts.precisions:
        if other := [name for name in stated.operators if types.setdefault(name, stated.dtype) != stated.dtype]:
            operator = model.ordered(other)[0]
            first = next(p for p in facts.precisions if operator.name in p.operators)
            less = f"({stated.selected})" if " " in stated.selected else stated.selected
            words = first.selected, less, WORDS[first.dtype]
            raise PlanError(TwoPrecisions(stated.span, operator.kind, operator.module, *words, first=first.span))
    return types


def no_kernel(error: CannotCompute, facts: Facts) -> "NoKernel":
    """The diagnostic of an operator that does not compute in the type that a statement gives it."""
    kind, module = error.operator.kind, error.operator.module
    stated = next(p for p in facts.precisions if error.operator.name in p.operators)
    return NoKernel(stated.span, kind, module, error.reason, stated.selected, WORDS[stated.dtype])


class NoSuchPrecision(Traced):
    """`precision OPS to bf16` names the type in which operators compute: `bf16`, or `fp32` in a model that is in half
    precision itself. Weights, and sums of their gradients, stay in the type of the model."""

    code = "E0223"
    title = "operators are not put in `{word}`{because}"
    help = "write {known}"
    word: str
    reason: str
    types: tuple[str, ...]

    @property
    def because(self) -> str:
        return f": {self.reason}" if self.reason else ""

    @property
    def known(self) -> str:
        return " or ".join(f"`{word}`" for word in self.types)

    @property
    def instead(self) -> tuple[str, ...]:
        return self.types


class TwoPrecisions(Conflict):
    """Two `precision` give an operator different types. Neither comes after the other: a plan's statements about
    operators have no order."""

    code = "E0224"
    title = "`{kind}` of `{module}` computes in another type already"
    help = "leave these out of the other: `precision {selected} - {less} to {word}`"
    earlier = "in another type here"
    kind: str
    module: str
    selected: str
    less: str
    word: str

    def edits(self) -> tuple[TextEdit, ...]:
        words = f"precision {self.selected} - {self.less} to {self.word}"
        return () if self.first is None else (TextEdit(self.first, words),)


class NoKernel(Traced):
    """`precision OPS to bf16` calls each of the operators with floating tensors in this type. Some of torch's operators
    do not take it."""

    code = "E0238"
    title = "`{kind}` of `{module}` does not compute in {word}: {reason}"
    help = "leave it out: `precision {selected} - model.{kind} to {word}`"
    kind: str
    module: str
    reason: str
    selected: str
    word: str

    @property
    def instead(self) -> tuple[str, ...]:
        return (f"precision {self.selected} - model.{self.kind} to {self.word}",)
