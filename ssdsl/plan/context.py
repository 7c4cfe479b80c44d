"""The context in which a statement runs: the model, the facts so far, the calls under way and the steps that are
left."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ssdsl.lang import nodes
from ssdsl.plan.errors.names import TooManySteps
from ssdsl.plan.eval.scope import Scope
from ssdsl.plan.facts import Facts, Records
from ssdsl.plan.model_index import ModelIndex
from ssdsl.plan.plan import OpPlan
from ssdsl.record import Record, field, replace
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Span

MOST_STEPS = 4_000_000


class Stack(Record):
    """The calls under way with the places where they stand, and the files being read: the outermost first."""

    functions: tuple[nodes.DefStatement | nodes.LetStatement, ...] = ()
    sites: tuple[Span, ...] = ()
    files: tuple[Path, ...] = ()

    @property
    def site(self) -> Span | None:
        """The last place in the plan itself that led to the function under way; None outside of calls."""
        return next((site for site in reversed(self.sites) if site.source == self.sites[0].source), None)

    def is_in(self, function: nodes.DefStatement | nodes.LetStatement) -> bool:
        """Whether this function is under way: the same object, not an equal one."""
        return any(f is function for f in self.functions)


@dataclass(slots=True)
class Budget:
    """The steps that a plan has taken. They are bounded, so every plan ends."""

    steps: int = 0

    def spend(self, node: nodes.Node, steps: int = 1) -> None:
        """Counts steps; raises PlanError at `node` when there are more than any plan needs."""
        self.steps += steps
        if self.steps > MOST_STEPS:
            raise PlanError(TooManySteps(node.span, MOST_STEPS))


class Context(Record):
    """Fixed except for three things that grow: the facts, the steps taken, and the libraries that `use` has read."""

    model: ModelIndex
    overrides: Mapping[str, int]  # what `--set` gives
    folder: Path | None  # of the plan, where `use "file.ssp"` looks
    orders: bool  # if false, statements that order tasks are not carried out
    facts: Facts
    budget: Budget = field(default_factory=Budget)
    stack: Stack = field(default_factory=Stack)
    libraries: dict[tuple[Path, frozenset[str] | None], Scope] = field(default_factory=dict)  # None: all of the file
    scope: Scope = field(default_factory=Scope)  # the names that have a meaning here

    def inside(self, scope: Scope) -> "Context":
        """The same context with other names. Each turn of a loop calls this, and `replace` would be slow."""
        same = self.model, self.overrides, self.folder, self.orders, self.facts
        return Context(*same, self.budget, self.stack, self.libraries, scope)

    def called(self, function: nodes.DefStatement | nodes.LetStatement, site: Span, scope: Scope) -> "Context":
        """The context inside of a call; `scope` has its arguments."""
        stack = Stack((*self.stack.functions, function), (*self.stack.sites, site), self.stack.files)
        return replace(self, stack=stack, scope=scope)

    def reading(self, path: Path, scope: Scope) -> "Context":
        """The context inside of a file that is used."""
        return replace(self, stack=replace(self.stack, files=(*self.stack.files, path)), scope=scope)

    def aside(self) -> "Context":
        """A context in which an expression is evaluated only to see its value: its effects are dropped."""
        return replace(self, facts=self.facts.copy(), budget=Budget(), libraries=dict(self.libraries))


def begin(
    model: ModelIndex,
    overrides: Mapping[str, int] | None = None,
    folder: Path | None = None,
    orders: bool = True,
    later: Mapping[str, str] | None = None,
) -> Context:
    """The context at the start of a plan, without any facts; `later` are the meshes on which an earlier reading of it
    put operators."""
    facts = Facts(Records(model.position, _of_parts(model)), later=later or {})
    return Context(model, dict(overrides or {}), folder, orders, facts)


def _of_parts(model: ModelIndex) -> list[OpPlan | None]:
    """The records before any statement: those of operators that are parts say which."""
    known = {parts: OpPlan(parts=parts) for parts in model.parts.values()}
    return [known[model.parts[name]] if name in model.parts else None for name in model.position]
