"""`bucket OPS.grads by 25`: how many megabytes of gradients are reduced together."""

from ssdsl.lang import nodes
from ssdsl.lang.formatter.spell import POST, spell
from ssdsl.plan.context import Context
from ssdsl.plan.errors.traced import Conflict, Traced
from ssdsl.plan.eval.expressions import evaluate, whole_number
from ssdsl.plan.plan import Bucketed, State
from ssdsl.plan.statements.shard import weights_of
from ssdsl.plan.values import StateOf
from ssdsl.text.diagnostic import PlanError

MOST = 1 << 20  # megabytes


def bucket(ctx: Context, s: nodes.BucketStatement) -> None:
    """Notes the size for each weight. Raises PlanError for anything but gradients, for a number out of range, or one
    that contradicts an earlier one."""
    at, value, megabytes = s.operators, evaluate(ctx, s.operators), whole_number(ctx, s.megabytes)
    if not isinstance(value, StateOf) or value.state is not State.GRADS:
        named = at.target if isinstance(value, StateOf) and isinstance(at, nodes.Attribute) else at
        raise PlanError(OnlyGradients(at.span, spell(named, POST)))
    if not 1 <= megabytes <= MOST:
        raise PlanError(NoSuchBucket(s.megabytes.span, megabytes, MOST))
    weights = weights_of(ctx, at, value)
    for known in ctx.facts.buckets:
        if known.megabytes != megabytes and (both := known.weights & weights):
            raise PlanError(BucketedTwice(s.megabytes.span, min(both), known.megabytes, megabytes, first=known.span))
    ctx.facts.buckets.append(Bucketed(weights, megabytes, s.span))


class OnlyGradients(Traced):
    """`bucket OPS.grads by 25`: so many megabytes of gradients are reduced together. Nothing else lies in buckets."""

    code = "E0269"
    title = "only gradients lie in buckets"
    help = "write `{operators}.grads`"
    operators: str


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
