"""The loader in processes: an error of one rank reaches the others at once, and nobody stays behind."""

import os
import socket
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def session(leader: int) -> list[str]:
    """The processes that are alive in a session."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == leader and fields[0] != "Z":
            found.append(stat.parent.name)
    return found


@pytest.mark.parametrize("workers", (pytest.param(0, marks=pytest.mark.slow), 2))
def test_an_error_of_one_rank_ends_all(workers: int, python: str) -> None:
    own = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port()), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    command = [python, "-m", "tests.runtime.train.one_rank_fails", str(workers)]
    ranks = []
    for rank in range(2):
        environment = {"PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo", **os.environ, **own, "RANK": str(rank)}
        ranks.append(
            subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
            )
        )
    leaders, said = zip(*(rank.communicate(timeout=60)[0].split("\n", 1) for rank in ranks), strict=True)
    assert all("rank 1: `dataset[13]`" in text and "a number went missing" in text for text in said)
    assert all(float(text.split()[2]) < 10 for text in said)
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert not any(session(int(leader)) for leader in leaders)
