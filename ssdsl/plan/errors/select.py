"""Mistakes in the selection of operators."""

from dataclasses import dataclass

from ssdsl.plan.errors.traced import Traced
from ssdsl.text.diagnostic import Diagnostic


@dataclass(frozen=True)
class NoSuchPath(Traced, Diagnostic):
    """A module path that no operator of the model has: `model["h.*.mlpp"]`.

    `*` stands for one segment, `**` for any number; a path names all beneath it and may begin anywhere.
    `ssdsl show PLAN --model gpt ops` lists the paths.
    """

    code = "E0240"
    title = "no module of `{model}` matches `{pattern}`"
    note = "{modules}"
    help = "{suggestion}"
    model: str
    pattern: str
    suggestion: str
    modules: str


@dataclass(frozen=True)
class NoSuchKind(Traced, Diagnostic):
    """No selected operator is of this kind: `model.linaer`. `ssdsl show PLAN --model gpt ops` lists the kinds."""

    code = "E0241"
    title = "no operator selected here is of kind `{kind}`"
    note = "{known}"
    help = "{suggestion}"
    kind: str
    suggestion: str
    known: str


@dataclass(frozen=True)
class NoSuchIndex(Traced, Diagnostic):
    """`[m = 3]` names the parts with that index, but no selected operator has been split into `m`, so far."""

    code = "E0242"
    title = "no operator selected here has an index `{name}`"
    note = "{known}"
    help = "split the operators into `{name}` above this line"
    name: str
    known: str


@dataclass(frozen=True)
class NothingSelected(Traced, Diagnostic):
    """A statement about no operator at all: `split model.linear & model.conv by ffn into tp`."""

    code = "E0243"
    title = "this selects no operator"


@dataclass(frozen=True)
class NotWhole(Traced, Diagnostic):
    """`split`, `assign` and `recompute` speak of whole operators; phases and fixed indices are for `order`."""

    code = "E0244"
    title = "{statement} takes whole operators"
    label = "names {found}"
    help = "leave {found} out"
    statement: str
    found: str


@dataclass(frozen=True)
class FixedTwice(Traced, Diagnostic):
    """An index or a phase is given twice: `attn[m = 1][m = 2]`."""

    code = "E0246"
    title = "`{name}` is already fixed here"
    help = "remove one"
    name: str


@dataclass(frozen=True)
class DifferentParts(Traced, Diagnostic):
    """Selections are combined first and narrowed to phases and indices after: `(a | b).fwd[m = 0]`."""

    code = "E0247"
    title = "these two name different phases or indices"
    help = "combine the operators first: `(a | b)[m = 0]`"


@dataclass(frozen=True)
class TooFewUnits(Traced, Diagnostic):
    """`balance(OPS, S)` needs at least S repeated modules or runs of other operators to choose from."""

    code = "E0248"
    title = "cannot balance {units} units over {stages} stages"
    note = "{names}"
    help = "choose at most {units} stages"
    units: int
    stages: int
    names: str
