"""Models as their users configure them: each config as it was published, at its size, under shipped plans."""

import pytest

from bench.published.run import row_of
from bench.published.sources import SOURCES

QUICK = "modernbert-base"
# the gate and the input of an expert of gpt-oss alternate in one axis, which is then cut by no plan
REFUSED = {"gpt-oss-20b": ("proved", "E0204", "proved")}


@pytest.mark.parametrize("name", [n if n == QUICK else pytest.param(n, marks=pytest.mark.slow) for n in SOURCES])
def test_a_published_model_is_proved(name: str) -> None:
    assert row_of(name, keep=False).plans == REFUSED.get(name, ("proved", "proved", "proved"))
