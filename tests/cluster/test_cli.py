"""`ssdsl clusters`: the table, its JSON, a file as a template, and what goes to stderr."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ssdsl.cli.options import complete_cluster
from ssdsl.cluster.load import KNOWN, known_clusters, load_cluster
from tests.cli.commands import Done, call

ROOT = Path(__file__).parent.parent.parent


def ssdsl(*words: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CONFIG_HOME": str(folder / "config"), **environment}
    command = [sys.executable, "-m", "ssdsl", *words]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120)


def here(*words: str, folder: Path) -> Done:
    """The same in this process."""
    return call(*words, folder=folder, XDG_CONFIG_HOME=str(folder / "config"))


@pytest.mark.parametrize("words", [["clusters"], ["clusters", "show", "h200x8"], ["clusters", "measure", "--help"]])
def test_no_torch_is_loaded(words: list[str]) -> None:
    code = (
        "import sys\nfrom ssdsl.cli.main import main\n"
        f"sys.argv = ['ssdsl', *{words!r}]\n"
        "try:\n    main()\nexcept SystemExit as e:\n    assert not e.code\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, cwd=ROOT)


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits(width: int, tmp_path: Path) -> None:
    done = ssdsl("clusters", folder=tmp_path, COLUMNS=str(width))
    assert (done.returncode, done.stderr) == (0, "")
    assert all(len(line) <= width for line in done.stdout.splitlines())
    assert all(name in done.stdout for name in known_clusters())


def test_json(tmp_path: Path) -> None:
    found = {c["cluster"]: c for c in json.loads(here("clusters", "--json", folder=tmp_path).stdout)}
    assert set(found) == set(known_clusters())
    assert found["two_sites"]["devices"] == 64 and len(found["two_sites"]["groups"]) == 2
    assert found["h200x8"]["groups"][0]["levels"][0]["bandwidth"] == 370e9
    assert found["h200x8"]["overlap"]["sends"] is True


@pytest.mark.parametrize("name", known_clusters())
def test_a_shown_file_is_a_cluster(name: str, tmp_path: Path) -> None:
    done = here("clusters", "show", name, folder=tmp_path)
    assert done.stdout == (KNOWN / f"{name}.toml").read_text("utf-8") and "source = " in done.stdout
    (tmp_path / "mine.toml").write_text(done.stdout)
    assert load_cluster(str(tmp_path / "mine.toml")).size == load_cluster(name).size or name == "laptop"


def test_a_wrong_file_is_1_and_on_stderr(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("about = 1\n")
    done = here("clusters", "show", "mine.toml", folder=tmp_path)
    assert (done.returncode, done.stdout) == (1, "") and "mine.toml:1:9" in done.stderr
    assert "did you mean `laptop`?" in here("clusters", "show", "labtop", folder=tmp_path).stderr


def test_the_users_laptop_is_announced(tmp_path: Path) -> None:
    place = tmp_path / "config" / "ssdsl" / "laptop.toml"
    place.parent.mkdir(parents=True)
    place.write_text((KNOWN / "laptop.toml").read_text("utf-8").replace("[[nodes]]", '[[nodes]]\nsite = "here"'))
    done = here("clusters", folder=tmp_path)
    assert str(place) in done.stderr and "here" in done.stdout
    place.write_text("about = 1\n")
    assert f"{place}:1:9" in here("clusters", folder=tmp_path).stderr


@pytest.mark.slow
def test_measure_saves_and_says_where(tmp_path: Path) -> None:
    done = here("clusters", "measure", "--out", "mine.toml", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "GFLOP/s" in done.stdout and "mine.toml" in done.stderr
    mine = load_cluster(str(tmp_path / "mine.toml"))
    core, link = mine.device(0), mine.link((0, 1))
    assert mine.shares_cores and 1e8 < core.peak_flops("float32") < 1e13 and 1e8 < core.memory_bandwidth < 1e13
    assert 0 <= core.contention < 100
    assert 1e-7 < core.launch_s < 1e-3 and 1e-6 < link.latency < 1 and 1e6 < link.bandwidth < 1e12


def test_completion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "home.toml").write_text("")
    assert complete_cluster("h") == ["h100x1024", "h200x8", "home.toml"]
