"""`bucket OPS.grads by 25`: how many megabytes of gradients are reduced together."""

from ssdsl.lang import nodes
from ssdsl.plan.context import Context
from ssdsl.plan.errors.traced import Conflict, Traced
from ssdsl.plan.eval.expressions import evaluate, whole_number
from ssdsl.plan.plan import State, WeightsMark
from ssdsl.plan.statements.shard import mark_weights, weights_of, without_state
from ssdsl.plan.values import StateOf
from ssdsl.text.diagnostic import PlanError

MOST = 1 << 20  # megabytes


def bucket(ctx: Context, s: nodes.BucketStatement) -> None:
    """Notes the size for each weight. Raises PlanError for anything but gradients, for a number out of range, or one
    that contradicts an earlier one."""
    at, value, megabytes = s.operators, evaluate(ctx, s.operators), whole_number(ctx, s.megabytes)
    if not isinstance(value, StateOf) or value.state is not State.GRADS:
        raise PlanError(OnlyGradients(at.span, without_state(at, value)))
    if not 1 <= megabytes <= MOST:
        raise PlanError(NoSuchBucket(s.megabytes.span, megabytes, MOST))
    mark_weights(
        ctx.facts.buckets,
        WeightsMark(weights_of(ctx, at, value, "bucket"), megabytes, s.span),
        lambda weight, known: BucketedTwice(s.megabytes.span, weight, known.value, megabytes, first=known.span),
    )


class OnlyGradients(Traced):
    """`bucket OPS.grads by 25`: so many megabytes of gradients are reduced together. Nothing else lies in buckets."""

    code = "E0269"
    title = "only gradients lie in buckets"
    help = "write `{operators}.grads`"
    operators: str

    @property
    def instead(self) -> tuple[str, ...]:
        return (f"{self.operators}.grads",)


class NoSuchBucket(Traced):
    """The size of buckets is a number of megabytes, 25 by default. A weight that is larger is a bucket by itself."""

    code = "E0289"
    title = "no bucket has {megabytes} MB"
    help = "choose a number from 1 to {most}; the default is 25"
    megabytes: int
    most: int


class BucketedTwice(Conflict):
    """Two `bucket` give the gradient of a weight buckets of different sizes."""

    code = "E0287"
    title = "the gradient of `{weight}` is in buckets of {known} MB already, not of {megabytes}"
    help = "remove one"
    earlier = "of another size here"
    weight: str
    known: int
    megabytes: int
