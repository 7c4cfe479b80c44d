"""Models as their users configure them: each config as it was published, at its size, under shipped plans."""

import pytest

from bench.published.run import row_of
from bench.published.sources import SOURCES

QUICK = "modernbert-base"


@pytest.mark.parametrize("name", [n if n == QUICK else pytest.param(n, marks=pytest.mark.slow) for n in SOURCES])
def test_a_published_model_is_proved(name: str) -> None:
    assert row_of(name, keep=False).plans == ("proved", "proved", "proved")
