"""Several nodes: what the command line may say, and how a rank judges what others have said."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from torch.distributed import TCPStore

from ssdsl.cli.training import chosen_nodes
from ssdsl.run.launch import Nodes
from ssdsl.runtime.health.failure import prepare_folder
from ssdsl.runtime.health.nodes import collect, hand_in
from ssdsl.runtime.health.stall import BEATS_S
from ssdsl.runtime.health.torchrun_store import StatusStore
from ssdsl.runtime.health.watchdog import _here
from ssdsl.runtime.ranks import transport


def test_nodes_of_the_command_line() -> None:
    assert chosen_nodes(2, 1, "node0:29500") == Nodes(2, 1, "node0:29500")
    assert list(Nodes(2, 1, "node0:29500").share(8)) == [4, 5, 6, 7]
    assert "--standalone" in chosen_nodes(1, 0, None).where(4)


@pytest.mark.parametrize(("count", "rank", "endpoint"), [(2, 2, "n:1"), (2, 0, None), (2, 0, "node0"), (2, 0, ":1")])
def test_what_is_missing(count: int, rank: int, endpoint: str | None) -> None:
    with pytest.raises(typer.BadParameter):
        chosen_nodes(count, rank, endpoint)


def said(idle_s: float, beat: float) -> dict[str, Any]:
    return {"idle_s": idle_s, "since": beat - idle_s, "beat": beat}


def test_clocks_of_nodes_need_not_agree() -> None:
    """A rank whose clock is an hour behind has moved 2 s before this one heard of it."""
    now, mine = 10_000.0, said(60, 10_000.0)
    heard = _here(said(2, 10_000.0 - 3600), now - 1, mine, now)
    assert (heard["since"], heard["beat"]) == (now - 3, now - 1)


def test_a_silent_rank_has_not_moved_for_as_long_as_this_one_waits() -> None:
    now, mine = 10_000.0, said(60, 10_000.0)
    heard = _here(said(2, 9_000.0), now - BEATS_S - 1, mine, now)
    assert heard["since"] == heard["beat"] == now - 60


EXCHANGE = """
import sys, torch, torch.distributed as dist
from ssdsl.runtime.ranks.gloo_staging import Staged
from ssdsl.runtime.ranks.transport import Transport

rank = int(sys.argv[1])
dist.init_process_group("gloo", "file://" + sys.argv[2], rank=rank, world_size=2)

def everything(transport):
    group, x = transport.new_group(), torch.arange(4.0) + 10 * rank
    found = [x.clone(), x.clone(), torch.empty(8), torch.empty(2), torch.empty(4), torch.empty(4)]
    transport.start_all_reduce(found[0], group, "max").wait()
    transport.start_all_reduce(found[1], group).wait()
    transport.start_all_gather(found[2], x, group).wait()
    transport.start_reduce_scatter(found[3], x, group).wait()
    transport.start_all_to_all(found[4], x, group).wait()
    transport.start_exchange([(1 - rank, found[5])], [(1 - rank, x)], group, 7).wait()
    found.append(x.clone())
    transport.start_broadcast(found[6], 1, group).wait()
    assert found[6].tolist() == [10, 11, 12, 13]
    found.append(torch.tensor(rank == 1))
    transport.start_broadcast(found[7], 1, group).wait()
    assert found[7]
    return found

for plain, staged in zip(everything(Transport()), everything(Staged()), strict=True):
    assert torch.equal(plain, staged), (plain, staged)
dist.barrier()
dist.destroy_process_group()  # threads of gloo that still run when the interpreter ends abort it
"""


def test_staged_tensors_arrive_as_others_do(tmp_path: Path, python: str) -> None:
    """The way of gloo between GPUs, on the CPU."""
    ranks = [subprocess.Popen([python, "-c", EXCHANGE, str(rank), str(tmp_path / "store")]) for rank in range(2)]
    assert [rank.wait(90) for rank in ranks] == [0, 0]


def test_complex_numbers_are_scattered_as_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL has none."""

    def scatter(into: torch.Tensor, x: torch.Tensor, group: object, async_op: bool) -> None:
        assert not into.is_complex() and not x.is_complex()
        into.copy_(x[len(into) :])

    monkeypatch.setattr(transport, "_scatter", scatter)
    into, x = torch.zeros(2, dtype=torch.complex64), torch.tensor([1 + 5j, 2 + 6j, 3 + 7j, 4 + 8j])
    transport.Transport().start_reduce_scatter(into, x, None).wait()
    assert torch.equal(into, x[2:])


@pytest.fixture
def two_nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The environment of the first rank, with a store that is there."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for name, value in {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": store.port,
        "GROUP_WORLD_SIZE": 2,
        "RANK": 0,
    }.items():
        monkeypatch.setenv(name, str(value))
    yield


@pytest.mark.usefixtures("two_nodes")
def test_the_reports_of_an_earlier_run_are_not_taken_for_those_of_this_one(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for run in ("earlier", "this"):
        store = StatusStore(run)
        for rank, out in enumerate((here, there)):
            prepare_folder(out, rank)
            (out / f"rank{rank}.json").write_text(run)
            hand_in(store, out, rank)
        collect(store, here, 2)
        assert [(here / f"rank{rank}.json").read_text() for rank in range(2)] == [run, run]


@pytest.mark.usefixtures("two_nodes")
def test_a_report_that_is_handed_in_is_there(tmp_path: Path) -> None:
    """However large it is: the first rank collects as soon as the others have handed in."""
    there, here = StatusStore("1"), StatusStore("1")
    here.put("opened", "before")
    for rank in range(20):
        theirs, mine = tmp_path / f"theirs{rank}", tmp_path / f"mine{rank}"
        theirs.mkdir()
        mine.mkdir()
        text = "".join(map(str, range(1_500_000 if rank == 0 else 150_000)))  # the first is of a long run
        (theirs / f"rank{rank}.json").write_text(text)
        hand_in(there, theirs, rank)
        collect(here, mine, rank + 1)
        assert (mine / f"rank{rank}.json").read_text() == text
