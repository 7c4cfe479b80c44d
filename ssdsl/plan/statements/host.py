"""`assign OPS.optimizer to host`: state in the memory of the host."""

from ssdsl.lang import nodes
from ssdsl.plan.context import Context
from ssdsl.plan.errors.traced import Traced
from ssdsl.plan.plan import OnHost, State
from ssdsl.plan.statements.shard import weights_of, without_state
from ssdsl.plan.values import StateOf
from ssdsl.text.diagnostic import PlanError

HOST = "host"


def to_host(ctx: Context, s: nodes.AssignStatement, value: StateOf) -> None:
    """Adds the fact that the optimizer's state of some weights lies in the memory of the host. Raises PlanError for
    another state, or another place: state lies with the weights."""
    is_host = isinstance(s.devices, nodes.NameExpression) and s.devices.text == HOST and not s.copies
    if value.state is not State.OPTIMIZER or not is_host:
        raise PlanError(StateElsewhere(s.span, without_state(s.operators, value)))
    if weights := weights_of(ctx, s.operators, value, "assign"):
        ctx.facts.on_host.append(OnHost(weights, s.span))


class StateElsewhere(Traced):
    """`assign OPS.optimizer to host`: the optimizer's state lies in the memory of the host, which updates the weights.
    Other state lies on the devices that have the weights."""

    code = "E0222"
    title = "state lies with its weights, or that of the optimizer on the host"
    help = "write `assign {operators}.optimizer to host`"
    operators: str
