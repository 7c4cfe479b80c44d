"""`ssdsl models`, `ssdsl plans` and `ssdsl ops`: the models, plans and rows of operators that come with ssdsl."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ssdsl.lang.parse import parse
from ssdsl.lang.read import read_source
from ssdsl.model.ops.op import Op
from ssdsl.model.ops.rows import FAMILIES
from ssdsl.model.zoo import PARAMETERS, ZOO
from ssdsl.model.zoo.family import ModelFamily, ModelSize
from ssdsl.plan.declarations import Declarations, declarations
from ssdsl.show.view import Column, ColumnKind, View

MODELS = (
    Column("model", style="bold cyan"),
    Column("parameters", ColumnKind.COUNT),
    Column("batch", ColumnKind.COUNT, drop=1),
    Column("trains on a laptop", fold=True, drop=2),
    Column("numbers", fold=True),
)
PLANS = (
    Column("plan", style="bold cyan"),
    Column("params", fold=True, style="green"),
    Column("what it does", fold=True),
)
LIBRARY = (
    Column("file", style="bold cyan"),
    Column("functions", fold=True, style="green"),
    Column("what it does", fold=True),
)
OPERATORS = (
    Column("operators", fold=True, style="bold cyan"),
    Column("dimensions", fold=True),
    Column("merged by", fold=True, style="green"),
    Column("file"),
)


def models_view() -> View:
    """The zoo: every family in every size, its default first."""
    rows = tuple(
        (name, PARAMETERS[name], size.numbers["batch"], "yes" if label in family.laptop else "", size.describe())
        for name, family, label, size in _sizes()
    )
    notes = (
        *(f"{name}: {family.about}; `--model {name}` is {name}:{family.default}" for name, family in ZOO.items()),
        "a size can be changed: gpt:350m,layers=8; a model of your own is path/to/file.py:function",
        "models of transformers are hf:TYPE, as hf:llama,num_hidden_layers=2,batch=4, or hf:path/to/config.json",
        "sizes that do not train on a laptop are built without numbers: they check, show and compile",
    )
    return View("models", MODELS, rows, notes)


def models_json() -> list[dict[str, Any]]:
    """The models as JSON; `numbers` are those that `--model NAME,field=value` may change."""
    return [
        {
            "model": name,
            "parameters": PARAMETERS[name],
            "batch": size.numbers["batch"],
            "trains_on_a_laptop": label in family.laptop,
            "is_default": label == family.default,
            "numbers": size.numbers,
        }
        for name, family, label, size in _sizes()
    ]


def _sizes() -> Iterator[tuple[str, ModelFamily, str, ModelSize]]:
    """Every size of every family: its full name, the family, its name in the family, its numbers."""
    for name, family in ZOO.items():
        yield from ((f"{name}:{label}", family, label, size) for label, size in family.sizes.items())


def plans_json(plans: Iterable[tuple[str, Path]], library: Iterable[Path]) -> dict[str, Any]:
    """Plans and the standard library, with params and functions as lists."""
    return {
        "plans": [
            {"plan": name, "params": {p.name: p.default for p in d.params}, "what_it_does": d.summary}
            for name, d in _plans(plans)
        ],
        "library": [
            {"file": name, "functions": list(d.functions), "what_it_does": d.summary} for name, d in _libraries(library)
        ],
    }


def plans_view(files: Iterable[tuple[str, Path]]) -> View:
    """The plans that come with ssdsl, under the names by which they are run."""
    rows = tuple((n, " ".join(f"{p.name}={p.default}" for p in d.params), d.summary) for n, d in _plans(files))
    note = "ssdsl run NAME; a param is set by --set T=4"
    return View("plans", PLANS, rows, (note,))


def library_view(files: Iterable[Path]) -> View:
    """The functions of the standard library, under the file that a plan names to use them."""
    rows = tuple((name, "\n".join(d.functions), d.summary) for name, d in _libraries(files))
    return View("standard library", LIBRARY, rows, ("in a plan: use FILE: function",))


def operators_view(word: str = "") -> View:
    """A row for the operators of one file that split alike; only those with this word in their names."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for operator in operators_json(word):
        key = (operator["dimensions"], operator["merged_by"], operator["file"])
        groups.setdefault(key, []).append(operator["operator"])
    rows = tuple((" ".join(names), *key) for key, names in groups.items())
    notes = (
        "dimensions: equal letters are one dimension, `!` cannot be split, `*` is merged; RULE(call) has its arguments",
        "merged by: kernels of parts that need each other; without one, parts along a dimension that the result lacks"
        " are added up",
        "file: in ssdsl/model/ops/families; operators that torch tags as pointwise need no row",
    )
    return View("operators", OPERATORS, rows, notes)


def operators_json(word: str = "") -> list[dict[str, str]]:
    """The operators with this word in their names, each with its signature, or the rule that makes one for a call.

    >>> operators_json("aten::amax")
    [{'operator': 'amax', 'dimensions': 'reduce_merged(call)', 'merged_by': 'amax_parts', 'file': 'reduce.py'}]
    """
    return [
        {
            "operator": op.name.removeprefix("aten::"),
            "dimensions": _dimensions(op),
            "merged_by": ", ".join(_kernels(op)),
            "file": f"{family.__name__.rpartition('.')[2]}.py",
        }
        for family in FAMILIES
        for op in family.OPS
        if word in op.name
    ]


def _dimensions(op: Op) -> str:
    """A signature as its row has it. A rule has the name of the function that is, or makes, it."""
    return op.dims if isinstance(op.dims, str) else f"{op.dims.__qualname__.partition('.')[0].strip('_')}(call)"


def _kernels(op: Op) -> Iterator[str]:
    """The functions that compute a part: of a dimension that is merged, around a ring, of windows."""
    yield from (kernel.function for kernel in (op.kernel, op.ring) if kernel is not None)
    if op.windows:
        yield op.windows.partition("(")[0]


def _plans(files: Iterable[tuple[str, Path]]) -> list[tuple[str, Declarations]]:
    return [(name, found) for name, path in files if (found := _read(path)).is_plan]


def _libraries(files: Iterable[Path]) -> list[tuple[str, Declarations]]:
    return [(path.stem, found) for path in files if (found := _read(path)).functions]


def _read(path: Path) -> Declarations:
    return declarations(parse(read_source(path)))
