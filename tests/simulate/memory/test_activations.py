"""Bytes of activations a layer, as Korthikanti et al. (2022, arXiv 2205.05198, table 2) count them.

With s positions, batch b, hidden h, a heads and tensor parallelism t, in bytes of 16-bit numbers. A layer is the
difference of two models. What we count and the paper calls small: the mean and the deviation of the two norms, 8sb.
"""

from fractions import Fraction

import pytest

from ssdsl.simulate.memory.activations import KeptBytes
from tests.simulate.models import BATCH, HEADS, HIDDEN, SEQ
from tests.simulate.steps import activations, compiled

SB = SEQ * BATCH
SBH = SB * HIDDEN
SCORES = Fraction(5 * HEADS * SEQ, HIDDEN)  # 5as/h: softmax 2, its dropout 2, the mask 1
NORMS = 8 * SB  # of each of two norms, two numbers of 16 bits a position


def kept(plan: str, model: str, **params: int) -> KeptBytes:
    (function,) = (program := compiled(plan, f"models.py:{model}", meta=True, **params).program).functions
    found = activations(program)
    assert found.of(function).size_bytes == sum(found.storages(function).values())
    return found.of(function)


def layer(plan: str, **params: int) -> int:
    more, fewer = (kept(plan, model, **params) for model in ("three_layers", "two_layers"))
    return more.size_bytes - fewer.size_bytes


def terms(plan: str, **params: int) -> dict[str, Fraction]:
    """The last layer's storages in units of sbh, by the kind of operator and where it stands."""
    program = compiled(plan, "models.py:three_layers", meta=True, **params).program
    makers = {o.value: op for op in program.graph.operators for o in op.outputs}
    makers |= {op.name: op for op in program.graph.operators}
    found: dict[str, Fraction] = {}
    for storage, size in activations(program).storages(program.functions[0]).items():
        maker = makers.get(storage.split("@")[0].split(" ")[0])
        if maker is not None and maker.path.startswith("layers.2"):
            what = storage.partition(" ")[2].rstrip(" 0123456789") or ("gathered" if "@" in storage else "")
            name = f"{maker.path.removeprefix('layers.2').lstrip('.')} {maker.kind} {what}".strip()
            found[name] = found.get(name, Fraction(0)) + Fraction(size, SBH)
    return found


def test_no_parallelism() -> None:
    """sbh(34 + 5as/h)."""
    assert layer("data_parallel", D=1) == SBH * (34 + SCORES) + NORMS


@pytest.mark.parametrize("t", [2, 4, 8])
def test_tensor_parallel(t: int) -> None:
    """sbh(10 + 24/t + 5as/(ht)): what is not cut are norms, the inputs of the four matmuls' pairs, and two masks."""
    assert layer("tensor_parallel", T=t) == SBH * (10 + Fraction(24, t) + SCORES / t) + NORMS


@pytest.mark.parametrize("t", [2, 4, 8])
def test_sequence_parallel(t: int) -> None:
    """sbh(34/t + 5as/(ht)): the two linear layers that are cut by their columns (queries, keys and values; the MLP's
    first) read the gathered output of a norm, of which a t-th part is kept, and gathered again in backward."""
    assert layer("sequence_parallel", T=t) == SBH * (34 / Fraction(t) + SCORES / t) + NORMS // t


@pytest.mark.parametrize("t", [2, 8])
def test_gathered_values_that_are_kept(t: int) -> None:
    """4sbh(1 - 1/t) more, and two gathers less."""
    assert layer("sequence_kept", T=t) == layer("sequence_parallel", T=t) + SBH * 4 * (1 - Fraction(1, t))


def test_full_recompute() -> None:
    """2sbh: what enters the layer; the rest is made again, for one layer at a time."""
    assert layer("recomputed_layers") == 2 * SBH
    again = kept("recomputed_layers", "three_layers").recomputed_bytes
    assert again == SBH * (34 + SCORES) + NORMS - 2 * SBH  # what enters it is there already


@pytest.mark.parametrize(("plan", "t"), [("data_parallel", 1), ("tensor_parallel", 4), ("sequence_parallel", 4)])
def test_term_by_term(plan: str, t: int) -> None:
    """Section 4.1: attention 11sbh + 5as²b, the MLP 19sbh, the norms' inputs 4sbh; what sequence parallelism cuts."""
    whole = Fraction(1, t if plan == "sequence_parallel" else 1)  # of what tensor parallelism leaves whole
    cut = Fraction(1, t)
    gathered = " gathered" if plan == "tensor_parallel" else ""
    assert terms(plan, **({"D": 1} if t == 1 else {"T": t})) == {
        f"norm1 layer_norm{gathered}": 2 * whole,  # the input of queries, keys and values
        "attention matmul copy": (4 + 2) * cut,  # queries and keys; values
        "attention softmax": SCORES * Fraction(2, 5) * cut,
        "attention dropout": SCORES * Fraction(2, 5) * cut,
        "attention dropout mask": SCORES * Fraction(1, 5) * cut + whole,  # of the scores and of the output
        "attention reshape": 2 * cut,  # the input of the projection
        f"norm2 layer_norm{gathered}": 2 * whole,  # the input of the MLP
        "mlp.rise linear": 8 * cut,  # the input of the GELU
        "mlp gelu": 8 * cut,
        "mlp dropout mask": whole,
        "add": (2 + 2) * whole,  # the inputs of this layer's second norm and of the next norm
        "norm1 layer_norm intermediate": whole * NORMS / SBH / 2,  # mean and deviation
        "norm2 layer_norm intermediate": whole * NORMS / SBH / 2,
    }


def test_what_gradients_of_weights_wait_for() -> None:
    """Zero Bubble (Qi et al. 2023, table 1) keeps 32sbh a layer from B to W: the inputs of the four linear layers,
    14sbh, and the gradients of their outputs, 18sbh. We also train norms, whose inputs and gradients are 4sbh each."""
    more, fewer = (kept("one_device_halves", model) for model in ("three_layers", "two_layers"))
    half = Fraction(1, 2)  # a micro-batch
    assert more.size_bytes - fewer.size_bytes == half * (SBH * (34 + SCORES) + NORMS)
    assert more.for_weights - fewer.for_weights == half * (SBH * (14 + 18 + 4 + 4) + NORMS)
