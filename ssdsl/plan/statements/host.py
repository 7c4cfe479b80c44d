"""`assign OPS.optimizer to host`, `OPS.weights`, `OPS.activations`: what lies in the memory of the host."""

from ssdsl.lang import nodes
from ssdsl.plan.context import Context
from ssdsl.plan.errors.traced import Traced
from ssdsl.plan.eval.select import require_some
from ssdsl.plan.plan import Mark, OnHost, State
from ssdsl.plan.statements.shard import weights_of, without_state
from ssdsl.plan.values import ActivationsOf, StateOf
from ssdsl.record import replace
from ssdsl.text.diagnostic import PlanError

HOST = "host"


def to_host(ctx: Context, s: nodes.AssignStatement, value: StateOf | ActivationsOf) -> None:
    """Adds the fact that the optimizer's state of some weights, these as well, or what backward keeps of some
    operators, lies in the memory of the host. Raises PlanError for gradients, or another place: state lies with the
    weights."""
    is_host = isinstance(s.devices, nodes.NameExpression) and s.devices.text == HOST and not s.copies
    if not is_host or (isinstance(value, StateOf) and value.state is State.GRADS):
        is_state = isinstance(value, StateOf) and value.state is not State.GRADS
        what = "activations" if isinstance(value, ActivationsOf) else value.state if is_state else State.OPTIMIZER
        raise PlanError(StateElsewhere(s.span, without_state(s.operators, value), what))
    if isinstance(value, ActivationsOf):
        operators = ctx.model.only_compute(value.operators)
        require_some(ctx, operators, value.of_items, s.operators, "assign")
        mark = Mark(1, s.span)
        ctx.facts.revise(ctx.facts.numbers(operators), lambda record: replace(record, offload=record.offload or mark))
    elif weights := weights_of(ctx, s.operators, value, "assign"):
        ctx.facts.on_host.append(OnHost(value.state, weights, s.span))


class StateElsewhere(Traced):
    """`assign OPS.optimizer to host`: the optimizer's state lies in the memory of the host, which updates the weights;
    with `OPS.weights` these, too. State lies nowhere else than on the devices that have the weights, or their hosts."""

    code = "E0222"
    title = "state lies with its weights; these, that of the optimizer, and activations may lie on the host"
    help = "write `assign {operators}.{what} to host`"
    operators: str
    what: str

    @property
    def instead(self) -> tuple[str, ...]:
        return (f"assign {self.operators}.{self.what} to host",)
