"""`%load_ext ssdsl` in a notebook: a cell with `%%ssp --model gpt` is a plan, which it compiles and shows.

    %%ssp --model gpt:350m --cluster a100x1024 --set S=2
    param S = 4
    mesh gpus(pp = S)
    ...

With a cluster, the cell shows a simulated step and its timeline below the tables of the plan. Mistakes are shown as
commands show them. What the cell returns is the compiled plan, `_` in the next one.
"""

from pathlib import Path
from typing import Any

from ssdsl.lang.header import Header, header_of
from ssdsl.plan_report import CompiledPlan, SimulatedPlan, compiled_text
from ssdsl.record import Record
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.render import render
from ssdsl.text.source import Source


class PlanCell(Record):
    """What a cell with a plan shows: the plan, and its simulated step if a cluster is named."""

    plan: CompiledPlan
    step: SimulatedPlan | None = None

    def __str__(self) -> str:
        return f"{self.plan}{self.step or ''}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self.plan._repr_html_() + ("" if self.step is None else self.step._repr_html_())


def ssp(line: str, cell: str) -> PlanCell:
    """Compiles the plan in a cell; `line` has the options that a header may have. Mistakes end the cell, without a
    traceback."""
    try:
        own = header_of(Source("%%ssp", f"# for: {line}")) if line.strip() else Header()
        source = Source("cell.ssp", cell)
        plan = compiled_text(source, Path(), own.given("--model"), own.numbers)
        cluster = own.given("--cluster") or header_of(source).given("--cluster")
        return PlanCell(plan, None if cluster is None else plan.simulate(cluster))
    except PlanError as error:
        raise _mistakes("\n\n".join(map(render, error.diagnostics))) from None
    except ValueError as error:
        raise _mistakes(str(error)) from None


def _mistakes(text: str) -> Exception:
    """What ends a cell without a traceback."""
    from IPython.core.error import UsageError  # which a notebook has

    return UsageError(f"\n{text}")


def register(shell: Any) -> None:
    """Adds `%%ssp` to a notebook's shell."""
    shell.register_magic_function(ssp, "cell", "ssp")
