"""`:help split`: a statement, a topic or a diagnostic in a few lines."""

import inspect

from rich.text import Text

from ssdsl.lang.explain import FORMS
from ssdsl.lang.suggest import suggest
from ssdsl.repl.errors import WrongArgument
from ssdsl.repl.reply import Shown
from ssdsl.text.diagnostic import REGISTRY, PlanError

STATEMENTS = {
    "param": "A number that the user may set: `--set N=8`.",
    "mesh": "The devices, row-major; `gpus[pp = s]` is a slice of them.",
    "let": "A value, or with arguments, `let f(s, m) = ...`, a family of values.",
    "use": 'Functions of the standard library, or of a file beside the plan: `use "mine.ssp": f`.',
    "dim": "A further name for a dimension, where the analysis found no good one.",
    "split": """Cut operators along a dimension: each gets an index. `into dp` takes the number of parts from the mesh's
axis of that name; `into m = 4` says it, and an index that is no axis of the mesh runs its parts one after another,
as micro-batches do. `split model.weights by row into dp` keeps state in parts; so do `.grads` and `.optimizer`.""",
    "assign": "Put operators on devices: a part goes where the axes equal its indices of the same name.",
    "order": """All tasks of A before all of B, also across devices; they agree on every index that neither fixes.
`order by clock for s in 0..S:` and rows `TASKS at TIME` sort what each device runs.""",
    "recompute": "Drop activations and compute them again in backward.",
    "require": "The plan's own precondition.",
    "def": "A function: its statements are those of whoever calls it. The block ends with an empty line.",
    "return": "The value of a function.",
    "for": "A loop; it also stands behind a statement: `assign stage[s] to gpus[pp = s] for s in 0..S`.",
    "if": "A condition, with `elif` and `else`.",
}
SELECTIONS = """\
model                    all operators
model["h.*.mlp"]         beneath a module; `*` is one segment, `**` any; it may begin at any segment
model.linear             of a kind
model[tp = none]         without the index `tp`; `any`: with it
a | b, a & b, a - b      united, in both, without
stage[s].fwd[m = 0]      tasks, for `order`: a phase (fwd, bwd, dgrad, wgrad) and a part
model.weights            state: also grads and optimizer
each("h.*")              the list of modules that match
balance(model, S)        a list of S stages of equal work"""
VALUES = """\
A value typed alone is shown and not kept: `model["h.*"].linear`, `2 * S`, `len(stage)`.
Numbers: + - * // %    lists: [a, b], [x for s in 0..S], a + b    ranges: 0..S
Truth: == != < <= > >= and or not    choice: a if test else b"""
KEYS = """\
Enter     ends a statement; a line that ends with `:` or has an open bracket goes on, an empty line ends a block
Tab       completes; the right arrow takes the grey suggestion from the history
Up        earlier entries, Ctrl-R searches them
Ctrl-C    clears the line, Ctrl-D quits"""
TOPICS = {**STATEMENTS, "selections": SELECTIONS, "values": VALUES, "keys": KEYS}


def topic(name: str) -> tuple[Shown, ...]:
    """What there is to say about a word."""
    name = name.lstrip(":")
    if name.upper() in REGISTRY:
        found = REGISTRY[name.upper()]
        return Text(f"{name.upper()}: {found.title}", style="bold"), f"\n{inspect.getdoc(found)}"
    if name not in TOPICS:
        suggestion = suggest(name, TOPICS) or "`:help` lists the topics"
        raise PlanError(WrongArgument(None, "help", "a statement, a topic or a code", suggestion))
    form = (Text(FORMS[name], style="bold"),) if name in FORMS else ()
    return *form, TOPICS[name]
