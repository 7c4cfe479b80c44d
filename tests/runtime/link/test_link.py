"""The emulated network: its results beside gloo's, the time it takes, and what is told if a rank makes other calls."""

import os
import subprocess
from pathlib import Path

import pytest

from ssdsl.runtime.link.speed import Speed, WrongLink

ROOT = Path(__file__).parents[3]


def torchrun(python: str, module: str, ranks: int, link: str, *words: str) -> "subprocess.CompletedProcess[str]":
    own = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "SSDSL_LINK": link}
    command = [python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "-m", module, *words]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **own}, capture_output=True, text=True, timeout=120)


def test_all_calls_beside_gloo(python: str) -> None:
    done = torchrun(python, "tests.runtime.link.beside_gloo", 3, "bandwidth=100Gb/s,node=2:200Gb/s")
    assert done.returncode == 0 and done.stdout.count("equal") == 3, done.stderr


@pytest.mark.slow
def test_no_faster_than_the_link(python: str) -> None:
    """Nor much slower, at the best of three times: what a busy machine adds to each is far below the other bound."""
    done = torchrun(python, "tests.runtime.link.timed", 3, "bandwidth=200Mb/s,latency=20ms")
    assert done.returncode == 0, done.stderr
    took = {name: float(ratio) for name, ratio in map(str.split, done.stdout.splitlines())}
    assert len(took) == 6
    assert all(1 <= ratio < 3 for ratio in took.values()), took


def test_ranks_that_make_other_calls(python: str) -> None:
    """The first error ends a rank, which the other one waits for."""
    done = torchrun(python, "tests.runtime.link.other_calls", 2, "bandwidth=1Gb/s")
    assert sorted(done.stdout.splitlines()) == [
        "all_reduce: rank 0 sent 4 bytes where 8 were expected; the ranks do not make the same calls|False|True",
        "all_reduce: rank 1 has ended, and this rank waits for it|False|True",
    ], done.stderr


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("1Gb/s", "`1Gb/s` is not bandwidth=RATE"),
        ("bandwidth=1Gb/s,bandwidth=2Gb/s", "is not bandwidth=RATE"),
        ("bandwidth=1Gb/s,lag=2ms", "is not bandwidth=RATE"),
        ("latency=2ms", "is not bandwidth=RATE"),
        ("bandwidth=fast", "`fast` is no rate"),
        ("bandwidth=0Gb/s", "`0Gb/s` is no rate"),
        ("bandwidth=1Gb/s,latency=2", "`2` is no time"),
        ("bandwidth=1Gb/s,node=8", "`` is no rate"),
        ("bandwidth=1Gb/s,node=0:1Gb/s", "`node=0:1Gb/s` is not RANKS:RATE"),
    ],
)
def test_wrong_texts(text: str, fact: str) -> None:
    with pytest.raises(WrongLink, match=fact):
        Speed.read(text)


def test_nodes() -> None:
    speed = Speed.read("bandwidth=1Gb/s,node=4:10Gb/s")
    assert (speed.between(0, 3), speed.between(3, 4), speed.between(5, 4)) == (1.25e9, 1.25e8, 1.25e9)
