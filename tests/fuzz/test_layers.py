"""Each kind of layer and of front that the fuzzer draws, once under a plan; and plans that cut what layers have."""

from itertools import islice
from random import Random

import pytest
import torch

from bench.fuzz.drawing import Drawing
from bench.fuzz.fronts import FRONTS
from bench.fuzz.layers import CLASSES, ROW_OF, ROWS
from bench.fuzz.models import Recipe
from bench.fuzz.recipes import ARGUMENTS, Sizes
from bench.fuzz.run import PLANS, cases
from bench.fuzz.together import split_together, splittable
from bench.fuzz.trial import COLUMNS, Case, Outcome, captured, try_case
from ssdsl.model.graph import Stage

CUT = ("mesh gpus(dp = 2)", "split model by {} into dp", "split model by batch into m = 2", "assign model to gpus")
LAYERS: dict[str, tuple[str, tuple[object, ...], str]] = {  # arguments, and what is cut
    "attention over all pixels": ("Pixels", (2, 2, "open"), "batch"),
    "patches and a token of the class": ("Patches", (4, 2, "first"), "batch"),
    "shifted windows": ("Windows", (4, (2, 2), (1, 2), "shifted"), "hidden"),
    "rows, then columns": ("Axial", (4, (2, 2), True), "hidden"),
    "tokens and pixels": ("Cross", (4, 2, "both"), "batch"),
    "an instance norm": ("Statistics", (4, 4, "instance alone"), "batch"),
    "the largest value ever": ("Observed", (4, "largest"), "hidden"),
    "a batch norm by hand": ("ByHand", (4, (0, 1)), "seq"),
    "an infinite norm": ("Whole", (4, "infinity", True), "hidden"),
    "rounding by the largest of each": ("Quantized", (4, True), "seq"),
    "a mask of places": ("Changed", (4, "masked"), "hidden"),
    "a slice in place": ("Changed", (4, "first"), "seq"),
    "a Fourier transform": ("Strided", (4, "fourier"), "hidden"),
    "a weight by a norm": ("Parametrized", (4, "weight_norm"), "batch"),
    "documents": ("Documents", (4, "lengths", True, True), "batch"),
    "positions by tokens": ("Positions", (4, 4, "padded"), "hidden"),
    "places of the last token": ("Counted", (6, "last"), "hidden"),
    "a second embedding": ("Looked", (4, 6, "pairs"), "hidden"),
    "an instance norm with running statistics": ("Statistics", (4, 4, "instance"), "batch"),
    "complex pairs": ("Strided", (4, "rotary"), '"h.0.lin.weight.0_inner1"'),
    "draws around what learns": ("Drops", (4, "around"), "batch"),
    "a weight by its largest singular value": ("Parametrized", (4, "spectral_norm"), "hidden"),
    "bags by frequency": ("Bag", (4, 6, "mean", "by frequency"), "hidden"),
    "a plane at points": ("Sampled", (4, (4, 6), "bilinear", "zeros", True), '"h.0.grid.2"'),
    "a volume at points": ("Sampled", (4, (2, 4, 3), "bilinear", "reflection", False), '"h.0.grid.3"'),
    "cells that are written and read": ("Cells", (4, 6, "scatter"), '"h.0.table.0"'),
    "the first token for all": ("Picked", (4, "first"), "seq"),
    "two tokens for all": ("Picked", (4, "two"), "seq"),
    "one sample for all": ("Picked", (4, "sample"), "hidden"),
    "each token on its own": ("Picked", (4, "each"), "seq"),
    "from token to token": ("Picked", (4, "running"), "seq"),
    "one row of a table": ("Cells", (4, 6, "one"), '"h.0.table.0"'),
    "each row of a table": ("Cells", (4, 6, "each"), '"h.0.table.0"'),
    "the largest of each cell": ("Cells", (4, 6, "largest"), '"h.0.table.0"'),
    "the smallest of each cell that has some": ("Cells", (4, 6, "smallest"), '"h.0.table.0"'),
    "bags of pairs": ("Bag", (4, 6, "mean", "pairs"), "batch"),
}


def tried(front: str, cut: str, *layers: tuple[str, tuple[object, ...]]) -> Outcome:
    """`hidden` is what the front makes, whatever its name."""
    model, graph = captured(recipe(front, *layers))
    if cut == "hidden":
        first = next(o for o in graph.operators if o.path == "front")
        given = {name for axes in model.axes.values() for name in axes}
        cut = next(f'"{d.name}"' for d in first.dims if d.name not in given and not d.fixed)
    return try_case(Case(recipe(front, *layers), tuple(s.format(cut) for s in CUT), "sgd", 1))


def recipe(front: str, *layers: tuple[str, tuple[object, ...]]) -> Recipe:
    return Recipe(4, 4, 4, 6, front, layers, "classes", 1)


@pytest.mark.thinned(16)
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_trains_as_on_one_device(name: str) -> None:
    layer, arguments, cut = LAYERS[name]
    outcome = tried("linear", cut, (layer, arguments))
    assert outcome.kind == "equal", outcome.text


@pytest.mark.parametrize("front", [name for name in FRONTS if name != "linear"])
def test_a_front_trains_as_on_one_device(front: str) -> None:
    outcome = tried(front, "hidden", ("All", ("cumsum", 1)))
    assert outcome.kind == "equal", outcome.text


def test_every_layer_is_drawn_and_has_a_row() -> None:
    sizes = Sizes(Random(0), 4, 4, 6)
    for name, made in CLASSES.items():
        assert ROW_OF[name] in ROWS
        torch.manual_seed(0)
        made(*(ARGUMENTS[name](sizes) if name in ARGUMENTS else (4,)))


def test_plans_cut_keys_along_one_dimension_of_an_axis() -> None:
    """Of the pixels of an image rows are cut, or columns; by unequal parts and by chunks that lie apart, too."""
    _, graph = captured(Recipe(2, 8, 4, 6, "pixels", (("Grouped", (4, 2, 2, 8, "open")),), "squares", 1))
    found = set()
    for seed in range(200):
        plan = Drawing(Random(seed), graph, axes={"cp": 2})
        split_together(plan)
        found |= set(plan.statements)
    attention = "split model.scaled_dot_product_attention by"
    for parts in ("", " = [1, 3]", " parts [[0, 3], [1, 2]]"):
        assert f'{attention} "height.1" into cp{parts}' in found
    assert f'{attention} "width.1" into cp' in found and "split model by height into cp" in found


def test_a_refusal_that_calls_itself_a_bug_is_counted_apart() -> None:
    ends = {"equal": "equal", "refused": "refused", "deadlock": "crash", "compiler": "crash", "unproved": "E0451"}
    assert {kind: Outcome(kind).column for kind in ends} == ends
    assert Outcome("wrong", "E0511, proved").column == Outcome("refused", "E0511").column == "E0511"
    assert Outcome("wrong", "loss, proved").column == "wrong" and set(ends.values()) <= set(COLUMNS)


def test_what_is_off_by_rounding_alone_is_a_false_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    """With no allowance; gradients that are not summed are none."""
    layer = ("Mlp", (4, 8, True, "gelu"))
    with monkeypatch.context() as patch:
        patch.setattr("ssdsl.run.verify.compare.Comparison.allowed", 0.0)
        assert tried("linear", "hidden", layer).column == "false alarm"
    with monkeypatch.context() as patch:
        patch.setattr("ssdsl.runtime.step.flat_params.Replicated.start_reduce", lambda flat: None)
        assert tried("linear", "batch", layer).column == "wrong"


def test_half_of_the_plans_cut_each_another_dimension() -> None:
    found = list(islice(cases(3, 1), PLANS))
    _, graph = captured(found[0].recipe)
    dims = splittable(o for o in graph.operators if o.stage is Stage.COMPUTE)
    cut = {d for d in dims for case in found[1::2] for s in case.plan if f' by "{d}" ' in s or f" by {d} " in s}
    assert len(cut) >= min(len(dims), PLANS // 2) - 2
