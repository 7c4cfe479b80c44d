"""What a GPT layer keeps for its backward, as Korthikanti et al. count it (arXiv 2205.05198, section 4.1).

With s positions, batch b, hidden h and a heads, in bytes of 16-bit numbers: attention 11sbh + 5as²b, the MLP 19sbh,
the norms 4sbh. What the paper leaves out as small: two numbers a position for each norm, its mean and its deviation.
"""

import importlib.util
import math

import pytest

from ssdsl.model.graph import Graph, Origin
from ssdsl.model.load import load
from ssdsl.model.memory.saved import saved
from ssdsl.model.module_to_graph import capture

Terms = dict[str, int]  # "layer_norm: intermediate" -> bytes


def terms_of(graph: Graph, path: str) -> Terms:
    """The bytes that the operators below a module keep, each storage once, by the operator that made them."""
    places, found = graph.storages, {}
    makers = {v.value: (o, i) for o in graph.operators for i, v in enumerate(o.outputs)}
    roots: dict[str, None] = {}
    for operator in (o for o in graph.operators if o.path.startswith(path)):
        kept = saved(operator, graph)
        roots.update((places[v].root, None) for v in kept.values(operator))
        for extra in kept.extras:
            name = f"{operator.kind}: {extra.what}"
            found[name] = found.get(name, 0) + extra.size_bytes
    for root in (r for r in roots if graph.values[r].origin is Origin.OPERATOR):
        value, (maker, position) = graph.values[root], makers[root]
        name = maker.kind + (f".{position}" if position else "")
        found[name] = found.get(name, 0) + math.prod(value.shape) * value.itemsize
    return found


def test_a_layer_written_as_the_paper_counts() -> None:
    graph = capture(load("tests/models/eager_gpt.py:layer_of_22b", meta=True))
    s, b, h, a = 2048, 4, 6144, 64
    sbh, aassb, norms = s * b * h, a * s * s * b, 2 * 2 * 2 * s * b
    assert terms_of(graph, "layers.0.attention") == {
        "layer_norm": 2 * sbh,  # the input of queries, keys and values
        "matmul: copy": (4 + 2) * sbh,  # queries and keys; values
        "reshape": 2 * sbh,  # the input of the projection
        "softmax": 2 * aassb,
        "dropout: mask": aassb + sbh,  # the masks
        "dropout": 2 * aassb,
    }
    assert terms_of(graph, "layers.0.mlp") == {
        "layer_norm": 2 * sbh,
        "linear": 8 * sbh,  # the input of the GELU
        "gelu": 8 * sbh,
        "dropout: mask": sbh,
    }
    assert terms_of(graph, "layers.0.norm") == {
        "dropout": 2 * sbh,  # the layer's input, here what leaves the embedding
        "add": 2 * sbh,
        "layer_norm: intermediate": norms,
    }
    assert sum(terms_of(graph, "layers.0").values()) == 34 * sbh + 5 * aassb + norms


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs transformers")
def test_a_layer_of_transformers_keeps_more_for_its_gelu() -> None:
    """Its GELU is eight operators of which four keep 8sbh each: x, its tanh, that plus one, and half of x."""
    spec = "gpt:layers=1,hidden=256,heads=8,seq=128,batch=4,dtype=bf16,attention=eager,dropout=0.1"
    graph = capture(load(spec, meta=True))
    s, b, h, a = 128, 4, 256, 8
    sbh, aassb, norms = s * b * h, a * s * s * b, 2 * 2 * 2 * s * b
    found = terms_of(graph, "transformer.h.0")
    assert found == {
        "layer_norm": 4 * sbh,
        "matmul: copy": 6 * sbh,  # queries, keys, values
        "softmax": 2 * aassb,
        "dropout": 2 * aassb + 2 * sbh,  # the scores' and the layer's input
        "dropout: mask": aassb + 2 * sbh,
        "reshape": 2 * sbh,
        "add": (2 + 8) * sbh,  # the second norm's input; the tanh plus one
        "addmm": 8 * sbh,  # the GELU's input
        "tanh": 8 * sbh,
        "mul": (8 + 8) * sbh,  # half of the GELU's input; its output
        "layer_norm: intermediate": norms,
    }
    assert sum(found.values()) == 34 * sbh + 5 * aassb + norms + 24 * sbh
