"""A small transformer as a graph made by hand: what the plan tests speak of, without torch."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ssdsl.lang.parse import parse
from ssdsl.model.graph import Dim, Graph, Operand, Operator, Origin, Stage, Value
from ssdsl.model.memory.storage import Storage, strides_in
from ssdsl.model.ops.rows import ROWS
from ssdsl.plan.interpret import interpret_all
from ssdsl.plan.plan import Plan
from ssdsl.record import replace
from ssdsl.text.diagnostic import Diagnostic, PlanError
from ssdsl.text.source import Source

ROW = ROWS["aten::linear"]

SIZES = {"batch": 8, "seq": 16, "heads": 12, "head_dim": 4, "hidden": 48, "ffn": 64, "vocab": 96}
CLASSES = {name: i for i, name in enumerate(SIZES)}


def _dim(name: str) -> Dim:
    """ "heads", "seq.0", and "hidden!" for one that cannot be split; "seq.keys" are combined."""
    plain = name.rstrip("!")
    base = plain.split(".")[0]
    fixed = "it is normalised over" if name.endswith("!") else ""
    return Dim(plain, SIZES[base], CLASSES[base], fixed, combined=plain == "seq.keys")


def make_graph(layers: int = 4) -> Graph:
    """Embedding, layers of attention and MLP, classifier and loss."""
    operators: list[Operator] = []
    values: dict[str, Value] = {}

    def add(path: str, kind: str, dims: str, weight: bool = True, stage: Stage = Stage.COMPUTE, flops: int = 0) -> None:
        name = f"{kind}_{len(operators)}"
        inputs: list[Operand] = []
        if weight:
            values[f"{path}.weight"] = Value(f"{path}.weight", Origin.WEIGHT, (4,), "float32", True, (), ())
            inputs.append(Operand(f"{path}.weight", ()))
        made = tuple(_dim(d) for d in dims.split())
        made = tuple(replace(d, beside=dims.split().index("seq")) if d.combined else d for d in made)
        at = {d.name.partition(".")[0]: (n,) for n, d in reversed([*enumerate(made)])}
        before = operators[-1] if operators and operators[-1].stage is not Stage.CONSTANT else None
        if before is not None:
            inputs.insert(0, Operand(before.name, tuple(at.get(d.name, ()) for d in before.dims)))
        output = Operand(name, tuple((i,) for i in range(len(made))))
        values[name] = Value(name, Origin.OPERATOR, tuple(d.size for d in made), "float32", True, (), ())
        place = f"model.py:{10 + len(operators) % 20}"
        form = name, kind, f"aten::{kind}", path, place, stage, (), ()
        operators.append(Operator(*form, tuple(inputs), (output,), made, ROW, flops))

    add("", "mask", "seq.0 seq.1", False, Stage.CONSTANT)
    add("", "shift", "batch seq", False, Stage.DATA)
    add("transformer.wte", "embedding", "batch seq vocab hidden")
    for i in range(layers):
        h = f"transformer.h.{i}"
        add(f"{h}.ln_1", "layer_norm", "batch seq hidden!")
        add(f"{h}.attn.c_attn", "linear", "batch seq hidden heads head_dim", flops=300)
        add(f"{h}.attn", "attention", "batch heads seq seq.keys head_dim", False, flops=200)
        add(f"{h}.attn.c_proj", "linear", "batch seq heads head_dim hidden", flops=100)
        add(h, "add", "batch seq hidden", False)
        add(f"{h}.ln_2", "layer_norm", "batch seq hidden!")
        add(f"{h}.mlp.c_fc", "linear", "batch seq hidden ffn", flops=400)
        add(f"{h}.mlp.act", "gelu", "batch seq ffn", False, flops=10)
        add(f"{h}.mlp.c_proj", "linear", "batch seq ffn hidden", flops=400)
        add(h, "add", "batch seq hidden", False)
    add("transformer.ln_f", "layer_norm", "batch seq hidden!")
    add("lm_head", "linear", "batch seq hidden vocab", flops=600)
    add("", "cross_entropy", "batch seq vocab", False)
    names = {i: name for name, i in CLASSES.items()}
    places = {name: Storage(name, strides_in(range(len(v.shape)), v.shape)) for name, v in values.items()}
    return Graph("toy", tuple(operators), values, operators[-1].name, names, {}, storages=places)


@pytest.fixture(scope="session")
def graph() -> Graph:
    return make_graph()


@pytest.fixture(scope="session")
def graph_of() -> Callable[[int], Graph]:
    return make_graph


class Plans:
    """Interpret a text on the toy model; keyword arguments are what `--set` would give."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def __call__(self, text: str, folder: Path | None = None, **overrides: int) -> Plan:
        return interpret_all(parse(Source("plan.ssp", text)), self.graph, overrides, folder)[0]

    def warnings(self, text: str, **overrides: int) -> tuple[Diagnostic, ...]:
        return interpret_all(parse(Source("plan.ssp", text)), self.graph, overrides)[1]

    def mistakes(self, text: str, folder: Path | None = None, **overrides: int) -> list[str]:
        """The codes of what is wrong with a plan."""
        with pytest.raises(PlanError) as caught:
            self(text, folder, **overrides)
        return [d.code for d in caught.value.diagnostics]


@pytest.fixture(scope="session")
def plan(graph: Graph) -> Plans:
    return Plans(graph)
