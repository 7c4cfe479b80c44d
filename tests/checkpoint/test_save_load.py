"""What ranks save together, any number of ranks load; what cannot be loaded is said on all of them."""

import errno
import json
import os
import pickle
import stat
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ssdsl.runtime.checkpoints.content import content_of
from ssdsl.runtime.checkpoints.loader import new_state, open_on_all, read_on_all
from ssdsl.runtime.checkpoints.plain import from_json, to_json
from ssdsl.runtime.checkpoints.reader import Checkpoint
from ssdsl.runtime.checkpoints.saver import Saver
from ssdsl.runtime.errors import EngineError
from ssdsl.runtime.step.parts import LocalTensor
from tests.checkpoint import parts
from tests.checkpoint.conftest import Together, together


def save(run: Path, seed: int, size: int, keep: int | None = 3, step: int | None = None) -> list[Any]:
    def work(control: Together) -> None:
        saver = Saver(control)
        saver.save(run, seed if step is None else step, parts.content(seed, control.rank, size), keep)
        saver.close()

    return together(size, work)


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("other", [1, 2, 3, 4])
def test_a_checkpoint_is_read_by_any_number_of_ranks(tmp_path: Path, size: int, other: int) -> None:
    assert save(tmp_path, 5, size) == [None] * size
    parts.check(Checkpoint.open(tmp_path).whole, 5)

    def work(control: Together) -> None:
        found = open_on_all(tmp_path, control)
        assert found.facts["steps"] == 5
        mine, expected = parts.content(7, control.rank, other), parts.content(5, control.rank, other)
        read_on_all(found, mine.tensors, control)
        for path, held in mine.tensors.items():
            assert torch.equal(held.tensor, expected.tensors[path].tensor), path
        weights = [mine.tensors["model", name] for name in parts.tensors(0)]
        state = new_state(found, weights)
        read_on_all(found, content_of([], state, {}).tensors, control, strict=False)
        for name in ("rows", "flat"):
            held = state[name]["exp_avg"]
            assert torch.equal(held.tensor, expected.tensors["optim", "state", name, "exp_avg"].tensor)
            assert state[name]["step"] == 5 and state[name]["step"].dtype == torch.float32

    assert together(other, work) == [None] * other


@pytest.mark.parametrize("size", [1, 3])
def test_weights_and_room_for_the_state_at_once(tmp_path: Path, size: int) -> None:
    save(tmp_path, 5, 2)

    def work(control: Together) -> None:
        mine, expected = parts.content(7, control.rank, size), parts.content(5, control.rank, size)
        weights = [held for path, held in mine.tensors.items() if path[0] == "model"]
        loaded = open_on_all(tmp_path, control)
        state = new_state(loaded, weights)
        assert loaded.facts["steps"] == 5 and state.keys() == {"rows", "flat"}
        found = content_of(weights, state, {})
        read_on_all(loaded, found.tensors, control)
        assert found.tensors.keys() == expected.tensors.keys() and found.scalars == expected.scalars
        for path, held in found.tensors.items():
            assert torch.equal(held.tensor, expected.tensors[path].tensor), path

    assert together(size, work) == [None] * size


def test_a_rank_reads_only_the_files_that_it_needs(tmp_path: Path) -> None:
    save(tmp_path, 1, 4)
    (tmp_path / "step-00000001" / "__3_0.distcp").unlink()
    found = Checkpoint.open(tmp_path)
    mine = parts.held("rows", torch.zeros(12, 3), 0, 2)  # the rows of ranks 0 and 1 of four
    found.read({("model", "rows"): mine})
    assert torch.equal(mine.tensor, parts.tensors(1)["rows"][:6])
    with pytest.raises(EngineError, match=r"__3_0\.distcp` is missing"):
        found.whole(("model", "rows"))


def test_large_tensors_are_stored_in_boxes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ssdsl.runtime.checkpoints.writer.LARGEST", 64)
    save(tmp_path, 2, 2)
    found = Checkpoint.open(tmp_path)
    assert max(c.sizes.numel() * 4 for c in found.tensors["model", "rows"].chunks) <= 64
    parts.check(found.whole, 2)


def test_the_newest_are_kept(tmp_path: Path) -> None:
    for seed in (1, 2, 3):
        save(tmp_path, seed, 2, keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".saving", "latest", "step-00000002", "step-00000003"]
    save(tmp_path, 4, 1, keep=None)
    assert len(list(tmp_path.glob("step-*"))) == 3
    parts.check(Checkpoint.open(tmp_path).whole, 4)
    parts.check(Checkpoint.open(tmp_path / "step-00000002").whole, 2)


def test_a_disk_that_cannot_wait_for_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As some that are mounted over a network."""
    synced = os.fsync

    def fsync(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        synced(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    save(tmp_path / "run", 1, 2)
    parts.check(Checkpoint.open(tmp_path / "run").whole, 1)


def test_a_run_that_went_back_saves_the_same_step_again(tmp_path: Path) -> None:
    """The one that is there stays until the new one is whole."""
    for seed, step in ((1, 100), (2, 200), (3, 100)):
        save(tmp_path, seed, 1, keep=2, step=step)
    assert sorted(p.name for p in tmp_path.glob("step*")) == ["step-00000100-2", "step-00000200"]
    parts.check(Checkpoint.open(tmp_path).whole, 3)


def test_what_a_dead_run_left_is_removed_and_what_is_the_users_stays(tmp_path: Path) -> None:
    save(tmp_path, 1, 1)
    (tmp_path / "step-00000009").mkdir()
    (tmp_path / "step-00000009" / "__0_0.distcp").write_text("half")
    (tmp_path / "notes").mkdir()
    (tmp_path / "step-00000001").rename(tmp_path / "best")
    (tmp_path / "best.txt").write_text("mine")
    save(tmp_path, 2, 1)
    kept = [".saving", "best", "best.txt", "latest", "notes", "step-00000002"]
    assert sorted(p.name for p in tmp_path.iterdir()) == kept
    parts.check(Checkpoint.open(tmp_path / "best").whole, 1)


def test_save_returns_after_the_copy(tmp_path: Path) -> None:
    """Tensors, numbers and facts are those of the call, though the disk comes later."""
    started, go = [], []

    class Slow(Together):
        def vote(self, error: str | None = None) -> bool:
            started.append(1)
            while not go:
                time.sleep(0.001)
            return super().vote(error)

    def work(control: Together) -> None:
        saver = Saver(Slow(control.table, control.rank))
        state: dict[str, Any] = {"w": {"step": torch.tensor(1.0)}}
        facts = {"list": [1]}
        w = torch.zeros(3)
        saver.save(tmp_path, 1, content_of([LocalTensor.whole("w", w)], state, facts))
        w += 1
        state["w"]["step"] += 1
        facts["list"].append(2)
        assert not (tmp_path / "latest").exists()
        go.append(1)
        saver.close()

    assert together(1, work) == [None]
    found = Checkpoint.open(tmp_path)
    assert found.whole(("model", "w")).tolist() == [0, 0, 0]
    assert found.whole(("optim", "state", "w", "step")) == 1 and found.facts["list"] == [1]


def test_an_error_is_raised_at_the_next_call_on_all_ranks(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    def work(control: Together) -> str:
        saver = Saver(control)
        saver.save(tmp_path / "file" / "run", 1, parts.content(1, control.rank, 2))
        with pytest.raises(EngineError) as raised:
            saver.save(tmp_path, 1, parts.content(1, control.rank, 2))
        saver.save(tmp_path, 2, parts.content(2, control.rank, 2), wait=True)
        return str(raised.value)

    first, second = together(2, work)
    assert first == second and f"cannot save to `{tmp_path / 'file' / 'run'}`: file exists" in first
    parts.check(Checkpoint.open(tmp_path).whole, 2)


def test_disks_that_nodes_do_not_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank does not see the folder that the first has made."""
    monkeypatch.setattr("ssdsl.runtime.checkpoints.saver.APPEARS_S", 0.0)

    class Elsewhere(Together):
        def broadcast(self, payload: bytes | None) -> bytes:
            return super().broadcast(payload) if self.rank == 0 else b"elsewhere" + super().broadcast(payload)

    def work(control: Together) -> None:
        saver = Saver(Elsewhere(control.table, control.rank))
        saver.save(tmp_path, 1, parts.content(1, control.rank, 2), wait=True)

    for error in together(2, work):
        assert isinstance(error, EngineError) and "is not there" in str(error)
        assert "save to a disk that all nodes have in common" in str(error)
    assert [p.name for p in tmp_path.iterdir()] == [".saving"]


def test_facts_that_are_no_plain_values(tmp_path: Path) -> None:
    def work(control: Together) -> None:
        saver = Saver(control)
        facts = {"scheduler": {"rule": [1, print]}} if control.rank == 0 else {}
        saver.save(tmp_path, 1, parts.content(1, control.rank, 2, facts), wait=True)

    for error in together(2, work):
        assert isinstance(error, EngineError)
        assert "cannot hold the builtin_function_or_method at ['scheduler']['rule'][1]" in str(error)
    assert not list(tmp_path.iterdir())


counters = st.dictionaries(st.integers(), st.integers()).map(Counter)
leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary() | counters


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = st.lists(inner)
    return lists | lists.map(tuple) | st.dictionaries(st.text() | st.integers(), inner)


values = st.recursive(leaves, _nested, max_leaves=10)


@given(values)
def test_plain_values_come_back(value: Any) -> None:
    found = from_json(to_json(value))
    assert found == value and type(found) is type(value)


def test_numbers_of_numpy_come_back_as_pythons() -> None:
    numpy = pytest.importorskip("numpy")
    found = from_json(to_json([numpy.float32(0.5), numpy.float64(0.1), numpy.int64(3), True]))
    assert found == [0.5, 0.1, 3, True] and [type(one) for one in found] == [float, float, int, bool]


def test_tensors_among_the_facts_come_back() -> None:
    found = from_json(to_json({"rng": torch.arange(5, dtype=torch.uint8)}))
    assert torch.equal(found["rng"], torch.arange(5, dtype=torch.uint8))


# -- what cannot be loaded ---------------------------------------------------------------------------------------------


def refused(run: Path, wanted: dict[tuple[str, ...], Any], **options: Any) -> str:
    """The one error of two ranks that load."""

    def work(control: Together) -> None:
        read_on_all(open_on_all(run, control), wanted, control, **options)

    errors = together(2, work)
    assert all(isinstance(e, EngineError) for e in errors) and str(errors[0]) == str(errors[1])
    return str(errors[0])


def weights(**tensors: torch.Tensor) -> dict[tuple[str, ...], Any]:
    return {("model", name): LocalTensor.whole(name, tensor) for name, tensor in tensors.items()}


def test_there_is_no_checkpoint(tmp_path: Path) -> None:
    assert "there is no folder" in refused(tmp_path / "none", {})
    assert "holds no checkpoint" in refused(tmp_path, {})
    (tmp_path / "latest").write_text("{")
    assert "latest` cannot be read" in refused(tmp_path, {})


def test_a_checkpoint_of_another_model(tmp_path: Path) -> None:
    save(tmp_path, 1, 2)
    kept = {name: torch.zeros_like(t) for name, t in parts.tensors(1).items()}
    renamed = {**{f"new{n}": torch.zeros(1) for n in range(7)}, **kept}
    del renamed["flat"]
    text = refused(tmp_path, weights(**renamed))
    assert "missing in it (7): new0, new1, new2, new3, new4 and 2 more" in text
    assert "not in the model (1): flat" in text and "help: " in text
    assert kept["rows"].abs().sum() == 0
    text = refused(tmp_path, weights(**{**kept, "rows": torch.zeros(12, 4)}))
    assert "other shapes (1): rows is [12, 3] there and [12, 4] here" in text
    text = refused(tmp_path, weights(**{**kept, "rows": torch.zeros(12, 3).half()}))
    assert "rows is float32 there and float16 here" in text and "cast=True" in text


def test_with_strict_off_and_with_a_cast(tmp_path: Path) -> None:
    save(tmp_path, 1, 2)
    rows = torch.zeros(12, 3).double()

    def work(control: Together) -> None:
        mine = weights(rows=rows, other=torch.zeros(3))
        read_on_all(open_on_all(tmp_path, control), mine, control, strict=False, cast=True)

    assert together(1, work) == [None]
    assert torch.equal(rows, parts.tensors(1)["rows"].double())


def test_the_state_of_a_weight_takes_its_type_with_it(tmp_path: Path) -> None:
    """One that was trained in bfloat16 goes on in float32; a number keeps its type."""
    save(tmp_path, 1, 2)
    flat = LocalTensor.whole("flat", torch.zeros(3, 5))

    def work(control: Together) -> None:
        loaded = open_on_all(tmp_path, control)
        state = new_state(loaded, [flat])
        read_on_all(loaded, content_of([flat], state, {}).tensors, control, strict=False, cast=True)
        moments, steps = state["flat"]["exp_avg"], state["flat"]["step"]
        assert isinstance(moments, LocalTensor) and moments.tensor.dtype == torch.float32
        assert torch.equal(moments.tensor, (parts.tensors(1)["flat"] + 1).float())
        assert isinstance(steps, torch.Tensor) and steps.dtype == torch.float32

    assert together(1, work) == [None]


def test_a_tied_weight_by_another_of_its_names(tmp_path: Path) -> None:
    content = content_of([LocalTensor.whole("head", torch.ones(2))], {}, {})
    together(1, lambda control: Saver(control).save(tmp_path, 1, content, wait=True))
    embed = torch.zeros(2)

    def work(control: Together) -> None:
        found = open_on_all(tmp_path, control, {"head": "embed"})
        read_on_all(found, weights(embed=embed), control)

    assert together(1, work) == [None] and embed.tolist() == [1, 1]


@pytest.mark.parametrize("by", ["cut", "changed", "gone", "metadata", "state"])
def test_a_damaged_checkpoint(tmp_path: Path, by: str) -> None:
    save(tmp_path, 1, 2)
    folder = tmp_path / "step-00000001"
    file = folder / {"metadata": ".metadata", "state": "state.json"}.get(by, "__1_0.distcp")
    data = bytearray(file.read_bytes())
    if by == "gone":
        file.unlink()
    elif by == "changed":  # one bit of a number
        at = data.index(bytes(parts.tensors(1)["rows"][6:].clone().untyped_storage()))
        data[at] ^= 1
        file.write_bytes(data)
    else:
        file.write_bytes(data[: len(data) // 2])
    zeros = {name: torch.zeros_like(t) for name, t in parts.tensors(1).items()}
    text = refused(tmp_path, weights(**zeros))
    said = {"cut": "is cut off", "changed": "is damaged", "gone": "is missing"}.get(by, "cannot be read")
    assert f"`{file}` {said}" in text


def test_no_code_runs(tmp_path: Path) -> None:
    """A pickle that would make a file, in the place of the metadata."""
    save(tmp_path, 1, 1)

    class Evil:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "executed",)

    (tmp_path / "step-00000001" / ".metadata").write_bytes(pickle.dumps(Evil()))
    assert "it asks for" in refused(tmp_path, {})
    assert not (tmp_path / "executed").exists()


def test_a_file_outside_of_the_folder_is_not_read(tmp_path: Path) -> None:
    save(tmp_path, 1, 1)
    found = Checkpoint.open(tmp_path)
    for place in found._metadata.storage_data.values():
        place.relative_path = f"../{place.relative_path}"
    with pytest.raises(EngineError, match="outside of its folder"):
        found.whole(("model", "rows"))


def test_latest_is_plain_json(tmp_path: Path) -> None:
    save(tmp_path, 1, 1)
    assert json.loads((tmp_path / "latest").read_text()) == {
        "latest": "step-00000001",
        "kept": ["step-00000001"],
        "removing": [],
    }
