"""Measuring this machine and saving it: the file is read back, is whole or not there, and no process is left."""

import os
from datetime import date
from pathlib import Path

import pytest

from ssdsl.cluster import measure
from ssdsl.cluster.load import cluster_file, load_cluster, measured_laptop
from ssdsl.cluster.measure import Measurement
from ssdsl.record import replace
from ssdsl.text.diagnostic import PlanError

FOUND = Measurement(
    processor='core of "Ångström" \\ 9000',
    cores=4,
    memory_bytes=16 << 30,
    float32_flops=8.1234e10,
    bfloat16_flops=2e11,
    memory_bandwidth=2.8e10,
    launch_s=2.2e-6,
    send_latency_s=8e-5,
    send_bandwidth=2.6e9,
    hop_latency_s=1.1e-4,
    all_reduce_bandwidth=1.1e9,
    contention=0.25,
    torch_version="2.13.0",
    day=date(2026, 1, 2),
)


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def test_it_becomes_the_laptop() -> None:
    shipped = load_cluster("laptop")
    measure.save(FOUND, measured_laptop())
    assert cluster_file("laptop") == measured_laptop()
    laptop = load_cluster("laptop")
    assert laptop != shipped and laptop.name == "laptop" and laptop.size == 4 and laptop.shares_cores
    device = laptop.device(0)
    assert device.name == FOUND.processor and device.memory_bytes == 4 << 30
    assert device.contention == 0.25 and shipped.device(0).contention == 0.0
    assert device.achievable_flops("float32") == pytest.approx(8.12e10)
    assert laptop.collective_time("all_reduce", 1.1e9, (0, 1)) == pytest.approx(1 + 2.2e-4)
    assert sum(laptop.exchange([((0, 1), 2.6e9)])) == pytest.approx(1 + 8e-5)


def test_a_relative_config_home_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "somewhere")
    assert measured_laptop().is_absolute() and "somewhere" not in measured_laptop().parts


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.toml"
    measure.save(FOUND, path)
    measure.save(replace(FOUND, cores=2), path)
    assert load_cluster(str(path)).size == 2 and list(tmp_path.iterdir()) == [path]
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(PlanError, match="E0612"):
        measure.save(FOUND, path)
    assert load_cluster(str(path)).size == 2 and list(tmp_path.iterdir()) == [path]


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PlanError, match="E0612"):
        measure.save(FOUND, tmp_path / "file" / "laptop.toml")
    with pytest.raises(PlanError, match="E0612"):
        measure.save(FOUND, tmp_path)


def test_a_process_that_fails_ends_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nowhere0")
    with pytest.raises(PlanError, match="E0611"):
        measure.measure()
    assert not _probes()


def test_processes_that_hang_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "LIMIT_S", 0.5)
    with pytest.raises(PlanError, match="did not end within"):
        measure.measure()
    assert not _probes()


def _probes() -> list[Path]:
    mine = f"SSDSL_PARENT={os.getpid()}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            found += [path] if mine in path.read_bytes().split(b"\0") else []
        except OSError:
            continue
    return found
