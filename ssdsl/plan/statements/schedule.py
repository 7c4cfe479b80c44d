"""`schedule(STAGES, M)`: orders the tasks of a pipeline: as 1F1B, or by two numbers for each stage.

Both are functions of the standard library, where their clocks stand (`stdlib/pipeline.ssp`).
"""

from ssdsl.lang import nodes
from ssdsl.plan.context import Context
from ssdsl.plan.errors.names import WrongArguments
from ssdsl.plan.eval.calls import call
from ssdsl.plan.eval.scope import Scope
from ssdsl.plan.eval.values import Builtin, Value
from ssdsl.plan.statements.execute import execute
from ssdsl.plan.statements.use import definitions, library_file
from ssdsl.text.diagnostic import PlanError

TAKES = "(stages, micro-batches, ahead = numbers, late = numbers)"
NUMBERS = "ahead", "late"


def schedule_builtin(scope: Scope) -> Builtin:
    """The word `schedule`; `scope` is that of all built-in words."""

    def schedule(ctx: Context, e: nodes.Call, given: tuple[Value, ...], **keyed: Value) -> Value:
        numbers = dict(zip(NUMBERS, given[2:], strict=False)) | keyed
        if len(numbers) not in (0, 2) or len(given[2:]) + len(keyed) != len(numbers):
            raise PlanError(WrongArguments(e.span, "schedule", TAKES, len(given), tuple(keyed)))
        library = definitions(ctx, scope, *library_file("pipeline"), execute)
        name = "ahead_and_late" if numbers else "one_f_one_b"
        return call(ctx, e, library.values[name], [*given[:2]], numbers)

    return Builtin("schedule", TAKES, 2, 4, schedule, frozenset(NUMBERS))
