"""A text that may not be a whole plan yet, read for a model: its facts, and the values of its expressions."""

from dataclasses import dataclass
from pathlib import Path

from ssdsl.lang.nodes import Expr, LetStatement
from ssdsl.lang.parse import parse
from ssdsl.plan.context import Context
from ssdsl.plan.eval.expressions import evaluate
from ssdsl.plan.values import Value
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Source


@dataclass(frozen=True, slots=True, eq=False)
class DraftReading:
    """The facts of a text about the model, and the names that it binds; `folder` is where `use "file.ssp"` looks.
    Nothing is added to it: `look` evaluates on a copy."""

    source: Source
    context: Context
    folder: Path

    def look(self, e: Expr) -> Value:
        """The value of an expression; raises PlanError."""
        return evaluate(self.context.aside(), e)

    def value_of(self, text: str | None) -> Value:
        """The value of the text of an expression; None if it has no value here, as inside a loop or a function."""
        if text is None:
            return None
        try:
            value = expression(text)
            return self.look(value) if value is not None else None
        except PlanError:
            return None


def expression(text: str, name: str = "", above: int = 0) -> Expr | None:
    """The expression that a text is; its lines are numbered as if so many stood above them. Raises PlanError for a text
    that is none. None for one that closes the bracket around it: `1)` and more lines."""
    match parse(Source(name, "\n" * above + f"let value = (\n{text}\n)\n")).statements:
        case (LetStatement(_, None, value),):
            return value
    return None
