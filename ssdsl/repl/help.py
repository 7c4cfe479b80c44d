"""`:help split`: explains a statement, a topic or a diagnostic in a few lines."""

import inspect

from rich.text import Text

from ssdsl.lang.nodes import STATEMENTS
from ssdsl.repl.errors import WrongArgument
from ssdsl.repl.session import Shown
from ssdsl.text.diagnostic import REGISTRY, PlanError

SELECTIONS = """\
model                    all operators
model["h.*.mlp"]         beneath a module; `*` is one segment, `**` any; it may begin at any segment
model.linear             of a kind
model[tp = none]         without the index `tp`; `any`: with it
a | b, a & b, a - b      united, in both, without
stage[s].fwd[m = 0]      tasks, for `order`: a phase (fwd, again, bwd, dgrad, wgrad) and a part
model.weights            state: also grads and optimizer
each("h.*")              the list of modules that match
balance(model, S)        a list of S stages of equal work; `[4, 2, 2]` for S: with these shares of it
cut(model, S, before = ["h.3"])   of stages that begin with these modules
widths(D, S, [1, 2, 4])   numbers of devices for S stages, D together"""
VALUES = """\
A value typed alone is shown and not kept: `model["h.*"].linear`, `2 * S`, `len(stage)`.
Numbers: + - * // %    lists: [a, b], [x for s in 0..S], a + b    ranges: 0..S
Truth: == != < <= > >= and or not    choice: a if test else b"""
KEYS = """\
Enter     ends a statement; a line that ends with `:` or has an open bracket goes on, an empty line ends a block
Tab       completes; the right arrow takes the grey suggestion from the history
Up        earlier entries, Ctrl-R searches them
Ctrl-C    clears the line, Ctrl-D quits"""
ABOUT = {keyword: "\n".join(kind.about for kind in kinds) for keyword, kinds in STATEMENTS.items()}
TOPICS = {**ABOUT, "selections": SELECTIONS, "values": VALUES, "keys": KEYS}


def topic(name: str) -> tuple[Shown, ...]:
    """The help on a word. Raises PlanError for an unknown one."""
    name = name.lstrip(":")
    if name.upper() in REGISTRY:
        found = REGISTRY[name.upper()]
        return Text(f"{name.upper()}: {found.headline()}", style="bold"), f"\n{inspect.getdoc(found)}"
    if name not in TOPICS:
        raise PlanError(WrongArgument(None, "help", "a statement, a topic or a code", ":help", name, tuple(TOPICS)))
    form = (Text(STATEMENTS[name][0].form, style="bold"),) if name in STATEMENTS else ()
    return *form, TOPICS[name]
