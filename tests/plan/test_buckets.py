"""`bucket OPS.grads by N` sizes the buckets of gradients; the word is a name like any other elsewhere."""

from pathlib import Path

import pytest

from ssdsl.compile import compile_source
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Source
from tests.captured import captured

GPT = "gpt:tiny,layers=2,hidden=256,seq=16,vocab=64"
PLAN = "mesh gpus(dp = 2)\nsplit model by batch into dp\n{}\nassign model to gpus\n"


def sizes(more: str) -> list[int]:
    """The bytes of each bucket."""
    found = compile_source(Source("plan.ssp", PLAN.format(more)), captured(GPT)[1], {}, Path())
    return [flat.elements * 4 for flat in found.program.flats]


def test_a_bucket_ends_with_the_weight_that_fills_it() -> None:
    usual, small, large = sizes(""), sizes("bucket model.grads by 1"), sizes("bucket model.grads by 100")
    assert sum(usual) == sum(small) == sum(large)
    assert len(large) == 1 < len(usual) < len(small)
    assert all(size >= 1 << 20 for size in small[:-1])


def test_some_weights_lie_in_buckets_of_their_own() -> None:
    found = sizes('bucket model["h.0"].grads by 100')
    assert max(found) == max(sizes('bucket model["h.*"].grads by 100')) // 2


@pytest.mark.parametrize(
    "more",
    [
        "let bucket = model\nbucket bucket.grads by 2",
        "split model by seq into bucket = 2",
        'dim bucket = model["h.0"].ffn\nsplit model["h.0"] by bucket into s = 2',
        "def bucket(ops):\n    recompute ops\nbucket(model)",
        'for bucket in each("h.*"):\n    bucket bucket.grads by 2',
    ],
)
def test_the_word_may_be_a_name(more: str) -> None:
    assert sizes(more)


def test_another_word_is_no_statement() -> None:
    with pytest.raises(PlanError) as caught:
        sizes("buckt model.grads by 2")
    (found,) = caught.value.diagnostics
    assert found.code == "E0110" and "bucket" in found.change
