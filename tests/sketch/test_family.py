"""The kinds of parallelism of a plan."""

import pytest

from ssdsl.lang.parse import parse
from ssdsl.plan.interpret import interpret_all
from ssdsl.sketch.family import family
from ssdsl.text.source import Source
from tests.captured import graph_of


@pytest.mark.parametrize(
    ("devices", "split", "words"),
    [
        (1, "batch into tp", "one device"),
        (2, "batch into tp", "data"),
        (2, "heads into tp", "tensor"),
        (2, "experts into tp where possible", "repeated work"),  # the model has none
    ],
)
def test_words_for_what_is_cut(devices: int, split: str, words: str) -> None:
    text = f"mesh gpus(tp = {devices})\nsplit model by {split}\nassign model to gpus\n"
    assert family(interpret_all(parse(Source("plan.ssp", text)), graph_of("gpt:tiny"))[0]) == words
