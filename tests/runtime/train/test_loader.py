"""The loader: the batches of a single device under any plan, of which a rank loads only what it needs."""

import gc
import signal
from collections import namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
    default_collate,
)
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from ssdsl.runtime.data.checked_batch import CheckedBatch
from ssdsl.runtime.data.loader import Loader
from ssdsl.runtime.data.rank_dataset import Workers
from ssdsl.runtime.errors import EngineError
from ssdsl.runtime.ranks.control import Control
from tests.runtime.train.data import BATCH, PLANS, Flow, Noisy, Numbers, Stateful, feeds
from tests.runtime.train.ranks import together

Make = Callable[[Any, Control], Loader]


def made(plan: str, dataset: Any, **options: Any) -> Callable[[Control], Loader]:
    """Makes each rank's loader; a data set that is made by a function is each rank's own."""
    options = {"batch_size": BATCH} | options

    def make(control: Control) -> Loader:
        own = dataset() if callable(dataset) else dataset
        return Loader(own, feeds(plan)[control.rank], control, **options)

    return make


def epochs(plan: str, dataset: Any, count: int = 2, **options: Any) -> list[list[CheckedBatch]]:
    """The parts of some epochs, of each rank."""
    make = made(plan, dataset, **options)
    return together(len(feeds(plan)), lambda control: list(make(control).epochs(count)))


def alone(dataset: Any, count: int = 2, **options: Any) -> list[CheckedBatch]:
    """The batches of a single device."""
    return epochs("one", dataset, count, **options)[0]


def assert_parts(plan: str, parts: list[list[CheckedBatch]], batches: list[Any]) -> None:
    """Each rank has its part of each of these batches, and no more."""
    for feed, own in zip(feeds(plan), parts, strict=True):
        assert len(own) == len(batches)
        for part, batch in zip(own, batches, strict=True):
            assert part.parts.keys() == feed.pieces.keys()
            assert all(torch.equal(part.parts[name], piece.of(batch[name])) for name, piece in feed.pieces.items())


def failing(plan: str, dataset: Any, count: int = 2, **options: Any) -> list[str]:
    """What each rank is told; all must be told something."""
    make = made(plan, dataset, **options)

    def run(control: Control) -> str:
        with pytest.raises(EngineError) as caught:
            list(make(control).epochs(count))
        return str(caught.value)

    return together(len(feeds(plan)), run)


# -- the batches -------------------------------------------------------------------------------------------------------


def test_in_order_they_are_those_of_a_plain_loader() -> None:
    plain = [{"x": x, "y": y} for x, y in DataLoader(Numbers(), BATCH, drop_last=True)]
    assert_parts("one", [alone(Numbers, 1)], plain)


@pytest.mark.covering
@pytest.mark.parametrize("workers", (0, 2))
@pytest.mark.parametrize("plan", PLANS)
def test_the_ranks_parts_are_those_of_the_single_devices_batches(plan: str, workers: int) -> None:
    batches = alone(Noisy, shuffle=True, seed=3)
    assert len(batches) == 2 * (30 // BATCH)
    parts = epochs(plan, Noisy, shuffle=True, seed=3, workers=Workers(workers))
    assert_parts(plan, parts, batches)
    first, second = ([key for batch in half for key in batch["y"].tolist()] for half in (batches[:3], batches[3:]))
    assert len(set(first)) == len(first) and first != second


def test_a_rank_reads_only_the_rows_that_it_needs() -> None:
    own = [Numbers() for _ in feeds("pipeline")]
    together(
        4, lambda control: list(Loader(own[control.rank], feeds("pipeline")[control.rank], control, batch_size=BATCH))
    )
    assert [data.read for data in own] == [
        [],
        [row for first in (0, 8, 16) for row in range(first, first + 4)],
        [row for first in (0, 8, 16) for row in range(first + 4, first + 8)],
        list(range(24)),
    ]


def test_random_numbers_are_the_samples_own_and_no_one_elses() -> None:
    before = torch.random.get_rng_state()
    batches = alone(Noisy, 1, seed=1)
    assert torch.equal(torch.random.get_rng_state(), before)
    shuffled = alone(Noisy, 1, seed=1, shuffle=True)
    rows = {int(y): x for batch in batches for x, y in zip(batch["x"], batch["y"], strict=True)}
    again = {int(y): x for batch in shuffled for x, y in zip(batch["x"], batch["y"], strict=True)}
    assert all(torch.equal(rows[y], again[y]) for y in rows.keys() & again.keys())
    assert not torch.equal(alone(Noisy, 1, seed=2)[0]["x"], batches[0]["x"])


def test_a_last_batch_may_be_kept() -> None:
    for dataset in (Numbers, Flow):
        for plan in ("one", "dp", "pipeline"):
            other = lambda rank, plan=plan: lambda sizes: feeds(plan, dict(sizes)["batch"])[rank]  # noqa: E731

            def run(
                control: Control, plan: str = plan, dataset: Any = dataset, other: Any = other
            ) -> list[CheckedBatch]:
                feed = feeds(plan)[control.rank]
                options = {"batch_size": BATCH, "feeds": other(control.rank), "drop_last": False}
                return list(Loader(dataset(), feed, control, **options))

            parts = together(len(feeds(plan)), run)
            assert [part.feed.shapes["y"] for part in parts[0]] == [(8,), (8,), (8,), (6,)]
            for feed, own in zip(feeds(plan, 6), parts, strict=True):
                for name, piece in feed.pieces.items():
                    whole = default_collate([Numbers()[key] for key in range(24, 30)])["xy".index(name)]
                    assert torch.equal(own[-1].parts[name], piece.of(whole))


def test_its_length_is_the_number_of_batches_of_an_epoch() -> None:
    def run(control: Control) -> tuple[int, int]:
        feed = feeds("one")[0]
        return tuple(len(Loader(Numbers(), feed, control, batch_size=BATCH, drop_last=d)) for d in (True, False))  # type: ignore[return-value]

    assert together(1, run) == [(3, 4)]


# -- what a loop sees --------------------------------------------------------------------------------------------------


@pytest.mark.covering
@pytest.mark.parametrize("workers", (0, 2))
@pytest.mark.parametrize("plan", PLANS)
def test_a_loop_sees_the_batches_of_a_single_device_on_every_rank(plan: str, workers: int) -> None:
    """Also where a rank has loaded a part, or nothing, and where samples and collate functions draw random numbers."""

    def mixup(samples: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = default_collate(samples)
        return x + torch.rand(1) * x.flip(0), y

    for options in ({"shuffle": True}, {"collate_fn": mixup, "whole": True}):
        batches = alone(Noisy, **options)
        for own in epochs(plan, Noisy, workers=Workers(workers), **options):
            assert [list(batch) for batch in own] == [["x", "y"]] * len(batches)
            assert {batch.samples for batch in own} == {BATCH}
            assert {batch.shapes["x"] for batch in own} == {(8, 6)}
            for batch, single in zip(own, batches, strict=True):
                assert all(torch.equal(batch[name], single[name]) for name in ("x", "y"))
                assert len(batch) == 2 and "y" in batch and "z" not in batch


def test_a_rank_trains_on_what_it_loaded_first() -> None:
    """Also if the loop has read the batch, and the data set gives other numbers when it is read again."""

    class Restless(Numbers):
        def __getitem__(self, key: int) -> Any:
            x, y = super().__getitem__(key)
            return x + 1000 * len(self.read), y

    for batch, feed in ((b, b.feed) for own in epochs("sequence", Restless, 1) for b in own):
        before = batch.parts["x"].clone()
        assert batch["x"].shape == (8, 6)
        assert torch.equal(batch.part_for(feed)["x"], before)


def test_a_loop_that_changes_a_batch_changes_that_of_the_step() -> None:
    for own in epochs("pipeline", Numbers, 1):
        batch = own[0]
        batch["x"].mul_(2)
        batch["y"] = batch["y"] + 1
        batch.check()
        whole = {"x": batch["x"], "y": torch.arange(1, 9)}
        assert batch["x"][1, 0] == 200
        for name, part in batch.part_for(batch.feed).items():
            assert torch.equal(part, batch.feed.pieces[name].of(whole[name]))


def test_a_stream_is_kept_whole_where_a_loop_reads_it() -> None:
    batches = alone(Flow, 1)
    for own in epochs("pipeline", Flow, 1, whole=True):
        assert all(torch.equal(a["x"], b["x"]) for a, b in zip(own, batches, strict=True))

    def read(control: Control) -> str:
        batch = next(iter(made("pipeline", Flow)(control)))
        assert batch.shapes["y"] == (BATCH,) and "y" in batch
        if control.rank == 3:
            assert batch["y"].shape == (BATCH,)
        with pytest.raises(EngineError) as caught:
            batch["x"]
        return str(caught.value)

    told = together(4, read)
    assert told[0].startswith(
        "rank 0 has not loaded all of `x`, and a stream gives its samples only once\n  help: give"
    )
    assert "whole=True" in told[3] and told[3].startswith("rank 3 ")


# -- forms of data -----------------------------------------------------------------------------------------------------

Pair = namedtuple("Pair", "x y")


@dataclass
class Example:
    x: torch.Tensor
    y: torch.Tensor


@pytest.mark.parametrize(
    "collate",
    (
        lambda samples: Pair(*default_collate(samples)),
        lambda samples: Example(*default_collate(samples)),
        lambda samples: dict(zip("yx", default_collate(samples)[::-1], strict=True)),
        lambda samples: {"x": default_collate(samples)[0], "y": default_collate(samples)[1], "mask": None},
    ),
    ids=("named tuple", "dataclass", "dictionary", "none"),
)
def test_collate_functions_give_what_they_like(collate: Any) -> None:
    assert_parts("dp", epochs("dp", Numbers, collate_fn=collate), alone(Numbers))


def test_a_tuple_may_have_another_order() -> None:
    class Swapped(Numbers):
        def __getitem__(self, key: int) -> Any:
            return super().__getitem__(key)[::-1]

    assert_parts("dp", epochs("dp", Swapped, names=("y", "x")), alone(Numbers))


def test_a_list_of_batches_and_a_map_of_them() -> None:
    batches = [dict(zip("xy", batch, strict=True)) for batch in DataLoader(Numbers(24), BATCH)]
    for plan in PLANS:
        assert_parts(plan, epochs(plan, batches, 1, batch_size=None), batches)
        assert_parts(plan, epochs(plan, lambda: iter(batches), 1, batch_size=None), batches)


def test_a_data_set_with_getitems_is_read_by_it() -> None:
    class Several(Noisy):
        def __getitems__(self, keys: list[int]) -> list[Any]:
            return [Noisy.__getitem__(self, key) for key in keys]

        def __getitem__(self, key: int) -> Any:
            raise AssertionError

    assert_parts("dp", epochs("dp", Several, shuffle=True), alone(Noisy, shuffle=True))


@pytest.mark.parametrize(
    "sampler",
    (
        lambda: RandomSampler(range(30)),
        lambda: RandomSampler(range(30), generator=torch.Generator()),
        lambda: WeightedRandomSampler([1.0, 2.0] * 15, 24),
    ),
    ids=("global", "own", "weighted"),
)
def test_any_sampler_gives_the_ranks_the_parts_of_the_same_batches(sampler: Any) -> None:
    def run(control: Control) -> list[CheckedBatch]:
        loader = Loader(Numbers(), feeds("dp")[control.rank], control, batch_size=BATCH, sampler=sampler(), seed=5)
        return list(loader.epochs(2))

    batches = alone(Numbers, sampler=sampler(), seed=5)
    assert_parts("dp", together(2, run), batches)
    assert batches[0]["y"].tolist() != batches[3]["y"].tolist() != list(range(8))


def test_a_data_loader_is_taken_over() -> None:
    def pairs(samples: list[Any]) -> Any:
        return dict(zip("xy", default_collate(samples), strict=True))

    plain = DataLoader(Numbers(), BATCH, collate_fn=pairs)
    whole = list(plain)[:3]
    assert_parts("pipeline", epochs("pipeline", plain, 1), whole)
    batched = DataLoader(
        Numbers(), batch_sampler=BatchSampler(SequentialSampler(range(30)), BATCH, True), collate_fn=pairs
    )
    assert_parts("pipeline", epochs("pipeline", batched, 1, batch_size=None), whole)
    flow = DataLoader(Flow(), BATCH, collate_fn=pairs, num_workers=2)
    assert_parts("pipeline", epochs("pipeline", flow, 1), [batch for batch in flow if len(batch["y"]) == BATCH])
    shuffled = epochs("dp", DataLoader(Numbers(), BATCH, shuffle=True), 1)
    assert sorted(int(y) for part in shuffled for batch in part for y in batch.parts["y"]) != list(range(24))


def test_a_collate_function_that_mixes_samples() -> None:
    def mixup(samples: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = default_collate(samples)
        return x + torch.rand(1) * x.flip(0), y

    assert_parts("dp", epochs("dp", Noisy, collate_fn=mixup, whole=True), alone(Noisy, collate_fn=mixup))
    (told, other) = failing("dp", Noisy, collate_fn=mixup)
    assert told == other and "collate_fn draws random numbers" in told and "whole=True" in told


def test_an_input_without_samples_is_whole() -> None:
    from ssdsl.runtime.data.batch_spec import BatchSpec
    from ssdsl.runtime.layout.cut import Piece
    from ssdsl.runtime.program.table import BatchInput

    inputs = {"x": BatchInput((4, 2), "float32", ()), "mask": BatchInput((3, 3), "bool", ())}
    data = [{"x": torch.full((2,), float(key))} for key in range(8)]

    def collate(samples: list[Any]) -> Any:
        return {**default_collate(samples), "mask": torch.ones(3, 3, dtype=torch.bool).tril()}

    def run(control: Control) -> list[CheckedBatch]:
        pieces = {"x": Piece("x", (4, 2), ((0, 1, 2, control.rank),)), "mask": Piece("mask", (3, 3), ())}
        return list(Loader(data, BatchSpec.of(inputs, pieces), control, batch_size=4, collate_fn=collate))

    parts = together(2, run)
    assert [part.parts["x"][:, 0].tolist() for part in parts[1]] == [[2, 3], [6, 7]]
    assert parts[0][0]["mask"].tolist() == [[True, False, False], [True, True, False], [True, True, True]]


# -- streams -----------------------------------------------------------------------------------------------------------


@pytest.mark.thinned(9)
@pytest.mark.parametrize("workers", (0, 2))
@pytest.mark.parametrize("plan", PLANS)
def test_parts_of_a_stream_are_those_of_a_plain_loaders_batches(plan: str, workers: int) -> None:
    plain = DataLoader(Flow(40), BATCH, num_workers=workers, drop_last=True)
    batches = [{"x": x, "y": y} for x, y in plain]
    assert len(batches) in (4, 5)
    assert_parts(plan, epochs(plan, lambda: Flow(40), 2, workers=Workers(workers)), batches * 2)


def test_a_rank_that_needs_nothing_leaves_the_stream_alone() -> None:
    own = [Flow() for _ in feeds("pipeline")]
    together(
        4, lambda control: list(Loader(own[control.rank], feeds("pipeline")[control.rank], control, batch_size=BATCH))
    )
    assert [flow.begun for flow in own] == [0, 1, 1, 1]


def test_a_worker_sees_the_users_data_set() -> None:
    flow = DataLoader(Flow(), BATCH, num_workers=1, worker_init_fn=_shrink, drop_last=True)
    assert len(list(flow)) == 1
    assert len(alone(flow, 1)) == 1


def _shrink(_: int) -> None:
    info: Any = torch.utils.data.get_worker_info()
    info.dataset.size = 10


# -- resuming ----------------------------------------------------------------------------------------------------------


def resumed(plan: str, dataset: Any, after: int, **options: Any) -> list[list[CheckedBatch]]:
    """The batches behind the how-many-th, of a loader made anew from the state of one that was there."""
    make = made(plan, dataset, **options)

    def run(control: Control) -> list[CheckedBatch]:
        loader, last = make(control), None
        source = loader.epochs(2)
        for _ in range(after):
            last = next(source)
        state = loader.state_dict(last)
        source.close()
        again = make(control)
        again.load_state_dict(state)
        return list(again.epochs(2))

    return together(len(feeds(plan)), run)


@pytest.mark.parametrize("after", range(7))
@pytest.mark.parametrize("dataset", (Noisy, Flow, Stateful))
@pytest.mark.parametrize("plan", ("dp", "pipeline"))
def test_resuming_at_every_position(plan: str, dataset: Any, after: int) -> None:
    shuffle = dataset is Noisy
    batches = alone(dataset, shuffle=shuffle)
    assert len(batches) == 6
    assert_parts(plan, resumed(plan, dataset, after, shuffle=shuffle), batches[after:])


@pytest.mark.covering
@pytest.mark.parametrize("after", (1, 4))
@pytest.mark.parametrize("dataset", (Noisy, Flow))
def test_batches_that_workers_have_ready_are_not_behind(dataset: Any, after: int) -> None:
    workers = Workers(2, prefetch_factor=2, persistent_workers=True)
    batches = epochs("dp", dataset, workers=workers)
    assert_parts(
        "dp", resumed("dp", dataset, after, workers=workers), [_joined(*b) for b in zip(*batches, strict=True)][after:]
    )


def _joined(*parts: CheckedBatch) -> dict[str, torch.Tensor]:
    return {name: torch.cat([part.parts[name] for part in parts]) for name in parts[0]}


def test_what_is_behind_is_not_read_again() -> None:
    for make in (Numbers, Stateful):
        made_sets: list[Any] = []

        def fresh(make: Any = make, made_sets: list[Any] = made_sets) -> Any:
            made_sets.append(make())
            return made_sets[-1]

        resumed("one", fresh, 2)
        again = made_sets[-1]
        count = len(again.read) if make is Numbers else again.given
        assert count == (24 - 16 + 24 if make is Numbers else 30 - 16 + 30)


def test_a_sampler_is_resumed() -> None:
    make = lambda: RandomSampler(range(30), generator=torch.Generator())  # noqa: E731
    batches = alone(Numbers, sampler=make())
    assert_parts("one", resumed("one", Numbers, 4, sampler=make()), batches[4:])


def test_a_checkpoint_of_other_data_is_refused() -> None:
    def run(control: Control) -> str:
        state = Loader(Numbers(), feeds("one")[0], control, batch_size=BATCH).state_dict()
        with pytest.raises(EngineError) as caught:
            Loader(Numbers(31), feeds("one")[0], control, batch_size=BATCH).load_state_dict(state)
        return str(caught.value)

    assert "31 samples, and those of the checkpoint had 30" in together(1, run)[0]


def test_an_epoch_that_was_left_is_not_gone_on_with() -> None:
    def run(control: Control) -> list[list[int]]:
        loader = Loader(Numbers(), feeds("one")[0], control, batch_size=BATCH)
        return [next(iter(loader))["y"].tolist() for _ in range(2)]

    assert together(1, run) == [[list(range(8))] * 2]


# -- mistakes ----------------------------------------------------------------------------------------------------------


class Broken(Numbers):
    def __getitem__(self, key: int) -> Any:
        if key == 13:
            raise ValueError("a number went missing")
        return super().__getitem__(key)


@pytest.mark.parametrize("workers", (0, 1))
def test_a_data_set_that_raises_on_one_rank(workers: int) -> None:
    told = failing("dp", Broken, workers=Workers(workers))  # only rank 1 reads sample 13
    assert told[0] == told[1]
    assert told[0].startswith("rank 1: `dataset[13]`, of batch 1 of epoch 0, raised ValueError: a number went missing")
    assert "test_loader.py, line" in told[0] and 'raise ValueError("a number' in told[0] and "help: " in told[0]


def test_a_stream_that_raises_or_ends_early_on_one_rank() -> None:
    class Raising(Flow):
        def __iter__(self) -> Iterator[Any]:
            yield from list(super().__iter__())[:20]
            raise OSError("the disk is gone")

    def run(bad: Any) -> list[str]:
        def body(control: Control) -> str:
            data = bad if control.rank == 2 else Flow()
            with pytest.raises(EngineError) as caught:
                list(Loader(data, feeds("pipeline")[control.rank], control, batch_size=BATCH))
            return str(caught.value)

        return together(4, body)

    for told in run(Raising()):
        assert told.startswith("rank 2: the data set raised OSError: the disk is gone")
    for told in run(Flow(17)):
        assert told.startswith(
            "batch 2 of epoch 0 is not the same on all ranks: 8 samples on rank 1, no samples on rank 2"
        )


def test_a_collate_function_that_raises() -> None:
    def bad(samples: list[Any]) -> Any:
        raise KeyError("label")

    told = failing("pipeline", Numbers, collate_fn=bad)
    assert len(set(told)) == 1
    assert told[0].startswith("ranks 1, 2, 3: batch 0 of epoch 0: bad raised KeyError: 'label'")


X, TAKES = "input `x` is", "and the program takes float32[8, 6]"
WRONG: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "axes": (lambda x, y: {"x": x[:, None], "y": y}, f"{X} float32[8, 1, 6], {TAKES}"),
    "dtype": (
        lambda x, y: {"x": x.double(), "y": y},
        f"{X} float64[8, 6], {TAKES}",
    ),
    "missing": (lambda x, y: {"x": x}, "the batch has `x`; `y` is missing"),
    "both missing": (lambda x, y: {"z": x}, "the batch has `z`; `x`, `y` are missing"),
    "more": (lambda x, y: {"x": x, "y": y, "z": y}, "the batch has `z`, which the plan was not compiled with"),
    "count": (lambda x, y: (x, y, y), "the batch has 3 values, and the model takes 2: `x`, `y`"),
    "kind": (lambda x, y: {"x": x, "y": y.tolist()}, "`y` of the batch is a list, not a tensor"),
    "none": (lambda x, y: None, "the batch is None"),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("plan", ("one", "dp", "pipeline"))
def test_a_batch_unlike_the_programs(plan: str, wrong: str) -> None:
    change, text = WRONG[wrong]
    told = failing(plan, Numbers, collate_fn=lambda samples: change(*default_collate(samples)))
    assert len(set(told)) == 1 and f"batch 0 of epoch 0: {text}" in told[0] and "help: " in told[0]


OWN = {"shuffle": True, "sampler": [1, 0], "collate_fn": default_collate, "workers": Workers(1)}


@pytest.mark.parametrize("name", OWN)
def test_a_dataloader_takes_no_arguments_beside_its_own(name: str) -> None:
    told = failing("dp", lambda: DataLoader(Numbers(), BATCH), **{name: OWN[name]})
    assert f"a DataLoader has its own {name}" in told[0] and "help: give that to the DataLoader" in told[0]


def test_samples_where_batches_are_expected() -> None:
    data = [{"x": x, "y": torch.tensor(y)} for x, y in (Numbers()[key] for key in range(9))]
    told = failing("one", lambda: data, batch_size=None)[0]
    assert "this one is a sample" in told and f"help: give batch_size={BATCH}" in told


def test_arguments_that_cannot_be() -> None:
    class Lengthless(Dataset[Any]):
        def __getitem__(self, key: int) -> Any:
            return key

    class Bad(Numbers):
        def __len__(self) -> int:
            raise FileNotFoundError("index.json")

    sampler = torch.utils.data.DistributedSampler(Numbers(), 2, 0)
    assert "takes no shuffle" in failing("dp", Flow, shuffle=True)[1]
    assert "have 4 samples, and the program is for 8" in failing("dp", Numbers, batch_size=4)[1]
    assert "DistributedSampler" in failing("dp", Numbers, sampler=sampler)[1]
    assert "Lengthless has no __len__" in failing("dp", Lengthless)[1]
    assert "int is no data set" in failing("dp", 3)[1]
    assert "len(dataset) raised FileNotFoundError: index.json" in failing("dp", Bad)[1]

    def run(control: Control) -> str:
        with pytest.raises(EngineError) as caught:
            Loader((Numbers, Bad)[control.rank](), feeds("dp")[control.rank], control, batch_size=BATCH)
        return str(caught.value)

    assert all(told.startswith("rank 1: len(dataset) raised") for told in together(2, run))


def test_ranks_with_other_data() -> None:
    def run(control: Control) -> str:
        with pytest.raises(EngineError) as caught:
            list(Loader(Numbers(30 + control.rank), feeds("dp")[control.rank], control, batch_size=BATCH))
        return str(caught.value)

    assert together(2, run)[0].startswith("the ranks' loaders differ in `samples`: 30 on rank 0, 31 on rank 1")


def test_an_epoch_without_a_batch() -> None:
    batches = [dict(zip("xy", batch, strict=True)) for batch in DataLoader(Numbers(16), BATCH)]
    assert "a generator runs only once" in failing("dp", lambda: (b for b in batches), batch_size=None)[0]
    assert "7 samples make no batch of 8" in failing("dp", lambda: Numbers(7))[0]


def test_a_batch_of_another_size_without_a_program() -> None:
    told = failing("pipeline", Numbers, drop_last=False)
    assert len(set(told)) == 1 and told[0].startswith("batch 3 has 6 samples, and the program is for 8 samples")


# -- workers -----------------------------------------------------------------------------------------------------------


def children() -> set[int]:
    tasks = Path("/proc/self/task").glob("*/children")
    return {int(pid) for task in tasks for pid in task.read_text().split()}


@pytest.mark.parametrize("keeps", (False, True))
def test_no_worker_stays_behind(keeps: bool) -> None:
    before = children()
    workers = Workers(2, persistent_workers=keeps)
    failing("dp", Broken, workers=workers)

    gc.disable()  # the last reference ends them
    try:
        together(2, lambda control: next(iter(made("dp", Numbers, workers=workers)(control))).feed.shapes)
        assert children() <= before
    finally:
        gc.enable()


class Killing(Numbers):
    def __getitem__(self, key: int) -> Any:
        import os

        if key == 13 and torch.utils.data.get_worker_info() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(key)


@pytest.fixture
def no_handler() -> Iterator[None]:
    """Torch's handler of ended workers, which raises in the main thread once that has made a DataLoader."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGCHLD, before)


@pytest.mark.usefixtures("no_handler")
def test_a_worker_that_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    wait = _MultiProcessingDataLoaderIter._try_get_data
    monkeypatch.setattr(wait, "__defaults__", (0.5,))  # seconds until it looks for its workers
    told = failing("dp", Killing, workers=Workers(1))
    assert told[0] == told[1] and told[0].startswith("rank 1: loading failed: a worker process ended\n  help: ")


def test_a_worker_that_ends_while_it_hands_over_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(loader: Any) -> Iterator[Any]:
        raise EOFError
        yield

    monkeypatch.setattr(Loader, "_loaded", broken)
    ended = failing("dp", Numbers, workers=Workers(1))
    assert all(told.startswith("ranks 0, 1: loading failed: a worker process ended\n") for told in ended)
    (told, _) = failing("dp", Numbers)
    assert told.startswith("ranks 0, 1: loading failed: EOFError")
