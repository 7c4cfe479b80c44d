"""Batches come back from a program's folder as they were, and take no more of it than their numbers need."""

from pathlib import Path

import pytest
import torch

from ssdsl.runtime.program.program import BATCHES, read_batches, write_batches

TENSORS = {
    "tokens": torch.arange(50_000).reshape(100, 500),
    "labels": torch.tensor([-100, 3, 32_000]),
    "large": torch.tensor([2**40]),
    "negative": torch.tensor([-(2**31), 2**31 - 1]),
    "none": torch.empty(0, 3, dtype=torch.int64),
    "small": torch.tensor([1, 2], dtype=torch.int32),
    "mask": torch.tensor([True, False]),
    "pixels": torch.rand(2, 3),
    "half": torch.rand(4).bfloat16(),
}


@pytest.mark.parametrize("name", list(TENSORS))
def test_they_come_back(tmp_path: Path, name: str) -> None:
    batches = [{name: TENSORS[name]}, {name: TENSORS[name].flip(0)}]
    write_batches(tmp_path, batches)
    for before, after in zip(batches, read_batches(tmp_path), strict=True):
        assert after[name].dtype == before[name].dtype
        assert torch.equal(after[name], before[name])


def test_tokens_take_two_bytes(tmp_path: Path) -> None:
    write_batches(tmp_path, [{"tokens": TENSORS["tokens"]}])
    assert (tmp_path / BATCHES).stat().st_size < 110_000


def test_tokens_that_are_labels_too_are_stored_once(tmp_path: Path) -> None:
    """They come back as two tensors, so that a program may write to one."""
    tokens = TENSORS["tokens"]
    batch = {"tokens": tokens, "labels": tokens.clone(), "small": tokens.int(), "others": tokens + 1}
    write_batches(tmp_path, [batch])
    assert (tmp_path / BATCHES).stat().st_size < 2 * 100_000 + 200_000 + 10_000
    (found,) = read_batches(tmp_path)
    found["labels"].zero_()
    for name in ("tokens", "small", "others"):
        assert torch.equal(found[name], batch[name])
