"""Buckets: samples grouped by length, and what is wrong with a loader's arguments for them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from ssdsl.record import replace
from ssdsl.runtime.data.batch_spec import BatchSpec
from ssdsl.runtime.data.buckets import Buckets
from ssdsl.runtime.data.loader import Loader
from ssdsl.runtime.errors import EngineError
from ssdsl.runtime.program.table import BatchInput
from ssdsl.runtime.ranks.control import Control
from tests.runtime.train.ranks import together

TABLE = {
    "x": BatchInput((2, 4), "int64", ("batch", "seq")),
    "labels": BatchInput((2, 4), "int64", ("batch", "seq")),
}
PAIRS = {
    "x": BatchInput((2, 4), "int64", ("batch", "src")),
    "y": BatchInput((2, 3), "int64", ("batch", "tgt")),
}


def feed(table: dict[str, BatchInput], sizes: tuple[tuple[str, int], ...] = ()) -> BatchSpec:
    """What a rank needs that needs all."""
    known = dict(sizes)
    entries = {
        n: replace(e, shape=tuple(known.get(a, s) for a, s in zip(e.axes, e.shape, strict=True)))
        for n, e in table.items()
    }
    return BatchSpec.of(entries, BatchSpec.of(entries, {}).wholes())


class Words:
    """Samples of these lengths; `read` notes which were asked for."""

    def __init__(self, *lengths: int) -> None:
        self.lengths, self.read = lengths, list[int]()

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, at: int) -> Any:
        self.read.append(at)
        return {name: torch.full((self.lengths[at],), at) for name in ("x", "labels")}


def loader(control: Control, dataset: Any, table: dict[str, BatchInput] = TABLE, **options: Any) -> Loader:
    options = {"batch_size": 2, "buckets": [2, 4], "pad": {"x": 9}} | options
    return Loader(dataset, feed(table), control, feeds=lambda sizes: feed(table, sizes), **options)


def test_batches_are_in_the_order_in_which_they_are_full() -> None:
    def run(control: Control) -> Any:
        made = loader(control, Words(1, 4, 2, 2, 3, 1, 4), drop_last=False)
        made.prepare()
        return [{n: t.tolist() for n, t in batch.items()} for batch in made], len(made), made.sizes_ahead

    given, count, ahead = together(1, run)[0]
    assert [batch["x"] for batch in given] == [
        [[0, 9], [2, 2]],
        [[1] * 4, [4, 4, 4, 9]],
        [[3, 3], [5, 9]],
        [[6] * 4],
    ]
    assert given[0]["labels"] == [[0, -100], [2, 2]]
    assert count == 4 and ahead == [(("seq", 2),), (("batch", 1),)]


def test_samples_are_measured_once_by_all_ranks_together() -> None:
    own = [Words(1, 4, 2, 2, 3) for _ in range(2)]

    def run(control: Control) -> tuple[int, ...]:
        groups = loader(control, own[control.rank]).groups
        assert groups is not None
        return groups.numbers

    assert together(2, run) == [(0, 1, 0, 0, 1)] * 2
    assert [words.read for words in own] == [[0, 2, 4], [1, 3]]
    given = Words(1, 4, 2)
    together(1, lambda control: loader(control, given, lengths=[1, 4, 2]))
    assert given.read == []


def test_buckets_of_two_axes() -> None:
    class Both(Words):
        def __getitem__(self, at: int) -> Any:
            return torch.full((self.lengths[at],), at), torch.full((5 - self.lengths[at],), at)

    def run(control: Control) -> Any:
        buckets = {"src": [2, 4], "tgt": [3, 4]}
        made = loader(control, Both(1, 4, 2, 1), PAIRS, buckets=buckets, pad={"x": 0, "y": -100}, drop_last=False)
        return [(tuple(batch["x"].shape), tuple(batch["y"].shape)) for batch in made]

    assert together(1, run)[0] == [((2, 2), (2, 4)), ((1, 2), (1, 3)), ((1, 4), (1, 3))]


def test_a_collate_function_gets_padded_samples() -> None:
    def collate(samples: list[dict[str, torch.Tensor]]) -> Any:
        assert {len(sample["x"]) for sample in samples} in ({2}, {4})
        return {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}

    def run(control: Control) -> Any:
        return [batch.shapes["x"] for batch in loader(control, Words(1, 3, 2, 4), collate_fn=collate)]

    assert together(1, run)[0] == [(2, 2), (2, 4)]


def test_a_resumed_loader_has_the_same_buckets() -> None:
    def run(control: Control) -> str:
        state = loader(control, Words(1, 4, 2)).state_dict()
        loader(control, Words(1, 4, 2)).load_state_dict(state)
        with pytest.raises(EngineError) as caught:
            loader(control, Words(1, 4, 2), buckets=[4]).load_state_dict(state)
        return str(caught.value)

    assert "have {'seq': [4]} buckets, and those of the checkpoint had {'seq': [2, 4]}" in together(1, run)[0]


WRONG: dict[str, tuple[Callable[[Control], Any], str]] = {
    "too long": (lambda c: loader(c, Words(1, 5)), "sample 1 has 5 along `seq`, and the longest bucket 4"),
    "no padding": (lambda c: loader(c, Words(1), pad=None), "nothing says what `x` is padded with"),
    "no input": (lambda c: loader(c, Words(1), pad={"z": 0, "x": 0}), "`z` is no input that buckets pad"),
    "no axis": (lambda c: loader(c, Words(1), buckets={"sq": [4]}), "no input has an axis `sq` to group by"),
    "several axes": (lambda c: loader(c, Words(1), PAIRS), "samples have several: `src`, `tgt`"),
    "no lengths": (lambda c: loader(c, Words(1), buckets=["4"]), "the buckets of `seq` are ['4']"),
    "lengths of others": (lambda c: loader(c, Words(1), lengths=[1, 2]), "`lengths` has 2 lengths along `seq`"),
    "a stream": (lambda c: loader(c, iter([])), "this one gives them in its own order"),
    "batches": (lambda c: loader(c, Words(1), batch_size=None), "this one gives them in its own order, or batches"),
    "a batch sampler": (lambda c: loader(c, Words(1), batch_sampler=[[0]]), "buckets make batches themselves"),
    "padding alone": (lambda c: loader(c, Words(1), buckets=None), "`pad` and `lengths` are for buckets"),
    "growing": (
        lambda c: list(loader(c, Words(3, 3), lengths=[1, 1])),
        "`x` of a sample has 3 along `seq`, and its bucket 2",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said(name: str) -> None:
    act, reason = WRONG[name]

    def run(control: Control) -> str:
        with pytest.raises(EngineError) as caught:
            act(control)
        return str(caught.value)

    told = together(2, run)
    assert reason in told[0] and "help: " in told[0] and told[0] == told[1]


def test_any_axis_of_a_sample_is_padded_at_its_end() -> None:
    table = {"x": BatchInput((2, 4, 6), "float32", ("batch", "rows", "seq"))}
    made = Buckets.of({"seq": [3, 5]}, {"x": 0.5}, feed(table))
    assert made.lengths_of({"x": torch.zeros(4, 2)}) == [2]
    assert made.padded({"x": torch.zeros(1, 2)}, (("seq", 3),))["x"].tolist() == [[0, 0, 0.5]]
