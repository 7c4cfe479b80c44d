"""Mistakes in the selection of operators."""

import re

from ssdsl.lang.suggest import either, listed, nearest, suggest
from ssdsl.plan.errors.traced import Traced
from ssdsl.plan.paths import near_paths, top_modules
from ssdsl.plan.plan import Phase, State
from ssdsl.text.edits import TextEdit
from ssdsl.text.source import Span


class NoSuchPath(Traced):
    """A module path that no operator of the model has: `model["h.*.mlpp"]`.

    `*` stands for one segment, `**` for any number. A path selects everything below it, and may begin at any segment.
    `ssdsl show PLAN --model gpt ops` lists the paths.
    """

    code = "E0240"
    title = "no module of `{model}` matches `{pattern}`"
    note = "{modules}"
    model: str
    pattern: str
    paths: tuple[str, ...]  # of the operators selected from

    @property
    def modules(self) -> str:
        tops = top_modules(self.paths)
        return f"its modules are {listed(tops)}" if tops else ""

    @property
    def change(self) -> str:
        if found := near_paths(self.pattern, self.paths):
            return f"did you mean {either(found)}?"
        return f"`ssdsl show PLAN --model {self.model} ops` lists the modules"

    @property
    def instead(self) -> tuple[str, ...]:
        return tuple(f'"{path}"' for path in near_paths(self.pattern, self.paths))


ALIKE: dict[str, str] = {  # other words for phases and state
    "forward": str(Phase.FORWARD),
    "backward": str(Phase.BACKWARD),
    "params": str(State.WEIGHTS),
    "parameters": str(State.WEIGHTS),
    "gradients": str(State.GRADS),
}


class NoSuchKind(Traced):
    """No selected operator is of this kind: `model.linaer`. `ssdsl show PLAN --model gpt ops` lists the kinds."""

    code = "E0241"
    title = "no operator selected here is of kind `{kind}`"
    note = "{has}"
    kind: str
    known: tuple[str, ...]
    target: str  # the expression in front of the dot
    is_module: bool  # whether a module of this name is selected

    @property
    def has(self) -> str:
        return f"its kinds are {listed(self.known)}" if self.known else ""

    @property
    def change(self) -> str:
        """The path, if a module was meant; else a kind, a phase or a state that is like it."""
        if self.is_module:
            return f'modules are chosen by a path in brackets: `{self.target}["{self.kind}"]`'
        if (word := ALIKE.get(self.kind)) is not None:
            return f"did you mean `{word}`?"
        found = suggest(self.kind, self._words)
        return found or "choose one of these, a phase such as `.fwd`, or state such as `.weights`"

    @property
    def _words(self) -> tuple[str, ...]:
        return (*self.known, *map(str, Phase), *map(str, State))

    @property
    def instead(self) -> tuple[str, ...]:
        return (ALIKE[self.kind],) if self.kind in ALIKE else nearest(self.kind, self._words)

    def edits(self) -> tuple[TextEdit, ...]:
        if self.span is None or not self.is_module:
            return super().edits()
        dot = self.span.source.text.rfind(".", 0, self.span.end)
        return (TextEdit(Span(self.span.source, dot, self.span.end), f'["{self.kind}"]'),)


class NoSuchIndex(Traced):
    """`[m = 3]` selects parts by an index, but no selected operator is split into `m` above this line."""

    code = "E0242"
    title = "no operator selected here has an index `{name}`"
    note = "they have {has}"
    help = "{change}"
    name: str
    known: tuple[str, ...]
    elsewhere: bool = False  # whether other operators of the model have it

    @property
    def has(self) -> str:
        return listed(self.known) or "none"

    @property
    def change(self) -> str:
        """The index that was meant; else to split the operators, or to select some that are split: a stage of a
        pipeline may have none of them."""
        if found := suggest(self.name, self.known):
            return found
        if self.elsewhere:
            return "others of the model have it: select some of these too; each stage of a pipeline needs some"
        return f"split the operators into `{self.name}` above this line"

    @property
    def instead(self) -> tuple[str, ...]:
        return nearest(self.name, self.known)


class NothingSelected(Traced):
    """The statement selects no operator: `split model.linear & model.conv by ffn into tp`.

    Only items of a list may be empty, such as the stages of a pipeline.
    """

    code = "E0243"
    title = "this selects no operator"
    help = "select some: `a & b` is those in both, `a | b` in either; `ssdsl show PLAN --model MODEL ops` lists them"


class NotWhole(Traced):
    """Phases are for `order`: `split`, `assign` and `recompute` are about a task's forward and its backward alike.

    `balance` and the state of weights are about all parts, too: a part of the batch reads whole weights. What `assign`,
    `split` and `recompute` say of a part by its index, as `assign model[m = 0] to ...` does, makes that part an
    operator of its own.
    """

    code = "E0244"
    title = "`{statement}` takes whole operators"
    label = "names {found}"
    statement: str
    phase: Phase | None
    index: str

    @property
    def found(self) -> str:
        return f"the phase `.{self.phase}`" if self.phase is not None else f"the index `{self.index}`"

    @property
    def change(self) -> str:
        return f"leave {self.found} out"

    @property
    def instead(self) -> tuple[str, ...]:
        own = "" if self.span is None else self.span.text
        if self.phase is not None:
            return (re.sub(rf"\.{self.phase}\b", "", own),)
        return (re.sub(rf"\b{self.index} = [^,\]]*(?:, *)?", "", own).replace("[]", ""),)


class Inseparable(Traced):
    """A statement names a part, which becomes an operator of its own: `assign stage[0][way = 0] to ...`.

    The parts of the index must be whole runs of a dimension such as the batch, outside of all other cuts of it, and
    operators must not read beyond their part, as windows and causal attention along the sequence do.
    """

    code = "E0297"
    title = "the parts of `{index}` cannot be told apart"
    note = "{reason}"
    index: str
    operator: str
    around: str | None  # an index that cuts the same dimension outside of it

    @property
    def reason(self) -> str:
        if self.around is not None:
            return f"in `{self.operator}` each part of `{self.around}` has some of every part of `{self.index}`"
        return f"a part of `{self.operator}` is no run of a dimension by itself"

    @property
    def change(self) -> str:
        if self.around is not None:
            return f"cut by `{self.index}` first: `into {self.index} = ..., {self.around}`"
        return f"name parts of the batch, or leave the index `{self.index}` out"


class NoSuchPart(Traced):
    """A statement names a part that the index does not have: `assign model[m = 4] to ...` with four parts."""

    code = "E0299"
    title = "`{index}` has no part {part}"
    label = "it has {count} parts"
    index: str
    part: int
    count: int

    @property
    def change(self) -> str:
        return f"choose a part from 0 to {self.count - 1}"


class FixedTwice(Traced):
    """An index or a phase is given twice: `attn[m = 1][m = 2]`."""

    code = "E0246"
    title = "`{name}` is already fixed here"
    help = "remove one"
    name: str


class DifferentParts(Traced):
    """Selections are combined first and narrowed to phases and indices after: `(a | b).fwd[m = 0]`."""

    code = "E0247"
    title = "these two name different phases or indices"
    help = "combine the operators first: `(a | b)[m = 0]`"


class TooFewUnits(Traced):
    """`balance(OPS, S)` needs at least S repeated modules, or runs of other operators, to make stages of.

    The model is cut between modules, never inside one: a model of 12 layers gives at most 12 stages, plus those for the
    modules before and after the layers.
    """

    code = "E0248"
    title = "cannot divide {modules} into {stages} stages"
    note = "stages are made of whole modules; here these are {names}"
    units: tuple[str, ...]
    stages: int

    @property
    def modules(self) -> str:
        return f"{len(self.units)} module{'' if len(self.units) == 1 else 's'}"

    @property
    def names(self) -> str:
        return listed(self.units)

    @property
    def change(self) -> str:
        if len(self.units) == 1:
            return "choose 1 stage, or select more of the model: `balance(model, S)`"
        empty = "or leave some empty: in `cut(..., before = ...)` two stages may begin at one module"
        return f"choose at most {len(self.units)} stages, {empty}"
