"""`simulate`, `show schedule`, `show memory` and `diff`: what they print, save and refuse."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ssdsl.cli.main import main
from ssdsl.cli.terminal import results
from ssdsl.cluster.load import cluster_file, read_cluster_file
from ssdsl.model.load.model import Model
from ssdsl.text.source import Source
from tests.cli.commands import call
from tests.simulate.steps import graph_of, model_of

ROOT = Path(__file__).parent.parent.parent
MODEL = """\
import torch

def net():
    axes = {"input": ("batch", "feature")}
    return torch.nn.Sequential(torch.nn.Linear(8, 8), Loss()), {"input": torch.randn(4, 8)}, axes

class Loss(torch.nn.Module):
    def forward(self, x):
        return (x ** 2).mean()
"""
WORDS = ["--model", "gpt", "--cluster", "v100x32"]
PLAN = ["one_f_one_b.ssp", *WORDS]


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def here(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Callable[..., Done]]:
    """Run the command in this process and an empty folder, 80 columns wide, with a model that is captured once."""

    def load(spec: str, **_: object) -> Model:
        return model_of(spec)

    monkeypatch.setattr("ssdsl.model.load.load", load)
    monkeypatch.setattr("ssdsl.model.module_to_graph.capture", lambda model: graph_of(model.name))
    monkeypatch.setattr(results, "width", 80)
    source = Path(__file__).parent.parent / "verify" / "plans" / "one_f_one_b.ssp"
    (tmp_path / "one_f_one_b.ssp").write_text(source.read_text())
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["ssdsl", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return Done(int(ended.value.code or 0), *capsys.readouterr())

    yield run


def test_the_environment_sets_width_and_colour(tmp_path: Path, python: str) -> None:
    """As a user runs it, in a process of its own, which finds the graph that the call before it kept."""
    (tmp_path / "net.py").write_text(MODEL)
    assert call("show", "data_parallel", "dims", "--model", "net.py:net", folder=tmp_path).returncode == 0
    env = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80", "NO_COLOR": "1"}
    words = ["show", "data_parallel", "schedule", "--model", "net.py:net"]
    done = subprocess.run(
        [python, "-m", "ssdsl", *words], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "") and fits(done.stdout)
    assert max(map(len, done.stdout.splitlines())) > 60


def fits(text: str) -> bool:
    return all(len(line) <= 80 for line in text.splitlines()) and "\x1b" not in text


def test_simulate(here: Callable[..., Done]) -> None:
    done = here("simulate", *PLAN)
    assert (done.returncode, done.stderr) == (0, "") and fits(done.stdout)
    for word in ("step", "bubble", "MFU", "peak memory", "gpus_pp0", "idle", "node", "send", "all_reduce"):
        assert word in done.stdout, word


def test_too_little_memory_ends_with_1(here: Callable[..., Done], tmp_path: Path) -> None:
    small = read_cluster_file(cluster_file("v100x32"), "v100x32").text
    (tmp_path / "small.toml").write_text(re.sub(r"memory_gib = [\d.]+", "memory_gib = 0.005", small))
    words = [PLAN[0], "--model", "gpt", "--cluster", "small.toml"]
    done = here("simulate", *words)
    assert done.returncode == 1 and "peak memory" in done.stdout and "error[E0614]" in done.stderr
    assert json.loads(here("simulate", *words, "--json").stdout)["fits"] is False
    done = here("check", *words)
    assert done.returncode == 1 and "roles" in done.stdout and "error[E0614]" in done.stderr
    assert [w["code"] for w in json.loads(here("check", *words, "--json").stdout)["warnings"]] == ["E0614"]
    done = here("show", words[0], "memory", *words[1:])
    assert done.returncode == 0 and "error[E0614]" in done.stderr
    assert here("check", *PLAN).returncode == 0


def test_simulate_as_json(here: Callable[..., Done]) -> None:
    found = json.loads(here("simulate", *PLAN, "--json").stdout)
    assert {"title", "plan", "cluster", "step_s", "bubble", "mfu", "model_flops", "peak_bytes"} < set(found)
    assert found["cluster"] == "v100x32" and 0 < found["bubble"] < 1 and 0 < found["mfu"] < 1
    assert [d["role"] for d in found["devices"]] == ["gpus_pp0", "gpus_pp1"]
    assert {d["device"] for d in found["devices"]} == {"V100 SXM"}
    assert all(sum(d["peak_parts"].values()) == d["peak_bytes"] for d in found["devices"])
    assert {t["kind"] for t in found["traffic"]} == {"send", "all_reduce"}
    assert sum(line["peak_share"] for line in found["lines"]) == pytest.approx(1)
    assert any(line["statement"].startswith("one_f_one_b.ssp:") for line in found["lines"])


def test_pictures(here: Callable[..., Done], tmp_path: Path) -> None:
    done = here("simulate", *PLAN, "--trace", "step.json", "--html", "step.html")
    assert done.returncode == 0 and "step.json" in done.stderr and "step.html" in done.stderr
    events = json.loads((tmp_path / "step.json").read_text())["traceEvents"]
    assert len([e for e in events if e["ph"] == "X"]) >= 2 * 4 * 2  # two stages, four micro-batches, there and back
    assert all(e["dur"] >= 0 and e["ts"] >= 0 for e in events if e["ph"] == "X")
    page = (tmp_path / "step.html").read_text()
    assert page.lstrip().lower().startswith("<!doctype html>") and "one_f_one_b(stage, M)" in page
    found = re.search(r'id="timeline">(.*?)</script>', page, re.DOTALL)
    assert found
    rows = json.loads(found[1])["byLine"]["rows"]
    assert sum(row["peak_share"] for row in rows) == pytest.approx(1) and any(row["line"] for row in rows)
    exposed = json.loads(found[1])["exposed"]
    assert all(row["line"] and row["why"] for row in exposed["rows"]) and exposed["notes"]
    assert not any(f'{where}="http' in page for where in ("src", "href")) and "url(http" not in page


def test_traces_of_ranks(here: Callable[..., Done], tmp_path: Path) -> None:
    """A folder has a file a rank, which a second step replaces; another program's are kept."""
    for _ in range(2):
        done = here("simulate", *PLAN, "--trace", "traces/")
        assert done.returncode == 0 and "traces/" in done.stderr
    traces = sorted((tmp_path / "traces").iterdir())
    assert [path.name for path in traces] == ["rank0.json", "rank1.json"]
    assert [json.loads(path.read_text())["distributedInfo"]["rank"] for path in traces] == [0, 1]
    traces[1].write_text('{\n  "schemaVersion": 1')
    done = here("simulate", *PLAN, "--trace", "traces/")
    assert done.returncode == 1 and "rank1.json" in done.stderr


@pytest.mark.parametrize("option", ["--trace", "--html"])
def test_a_picture_that_cannot_be_saved(here: Callable[..., Done], option: str, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    done = here("simulate", *PLAN, option, "nowhere/step.json")
    assert (done.returncode, done.stdout) == (1, "") and "E0125" in done.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_costs(here: Callable[..., Done], tmp_path: Path) -> None:
    (tmp_path / "costs.json").write_text('{"unit": "ms", "TF": 1, "TB": 1, "TW": 1}')
    done = here("simulate", *PLAN, "--costs", "costs.json", "--json")
    assert json.loads(done.stdout)["step_s"] == pytest.approx((4 + 1) * 3e-3)
    done = here("simulate", *PLAN, "--costs", "cots.json")
    assert (done.returncode, done.stdout) == (1, "") and "E0651" in done.stderr


def test_tasks_of_another_program(here: Callable[..., Done], tmp_path: Path) -> None:
    (tmp_path / "costs.json").write_text('{"tasks": {"block0.fwd": 1}, "recorded": "gpipe,M=2", "program": "0"}')
    done = here("simulate", *PLAN, "--costs", "costs.json")
    assert (done.returncode, done.stdout) == (1, "") and "E0653" in done.stderr
    assert "gpipe,M=2" in done.stderr and "ssdsl profile --model gpt" in done.stderr


@pytest.mark.parametrize("words", [["one_f_one_b.ssp,S"], ["one_f_one_b.ssp,S=x"], ["nowhere.ssp"], []])
def test_a_profile_of_what_is_no_plan(here: Callable[..., Done], words: list[str], tmp_path: Path) -> None:
    done = here("profile", *words, "--model", "gpt", "--out", "profile.json")
    assert done.returncode in (1, 2) and done.stdout == "" and "Traceback" not in done.stderr
    assert not (tmp_path / "profile.json").exists()


def test_the_schedule(here: Callable[..., Done]) -> None:
    done = here("show", PLAN[0], "schedule", *WORDS)
    assert (done.returncode, done.stderr) == (0, "") and fits(done.stdout)
    assert "gpus_pp0" in done.stdout and "gpus_pp1" in done.stdout
    step_ms = 1e3 * json.loads(here("simulate", *PLAN, "--json").stdout)["step_s"]
    part = here("show", PLAN[0], "schedule", *WORDS, "--window", f"{step_ms / 4}..{step_ms / 2}")
    assert part.returncode == 0 and fits(part.stdout) and part.stdout != done.stdout
    rows = here("show", PLAN[0], "schedule", *WORDS, "--transfers").stdout
    assert fits(rows) and len(rows.splitlines()) > len(done.stdout.splitlines())


@pytest.mark.parametrize("window", ["5..1", "a..b", "1", "..", "1e9..2e9", "-1..1", "nan..1"])
def test_a_wrong_window(here: Callable[..., Done], window: str) -> None:
    done = here("show", PLAN[0], "schedule", *WORDS, f"--window={window}")
    if window == "..":  # all of it
        assert done.returncode == 0
        return
    assert (done.returncode, done.stdout) == (2, "") and "--window" in done.stderr and "Traceback" not in done.stderr


def test_the_memory(here: Callable[..., Done]) -> None:
    done = here("show", PLAN[0], "memory", *WORDS)
    assert (done.returncode, done.stderr) == (0, "") and fits(done.stdout)
    for word in ("weights", "gradients", "optimizer", "activations", "capacity", "gpus_pp1"):
        assert word in done.stdout, word


def test_tasks_as_json_are_all_there(here: Callable[..., Done]) -> None:
    """The table abbreviates; its JSON does not."""
    words = ["show", PLAN[0], "tasks", "--model", "gpt", "--set", "M=8"]
    found = json.loads(here(*words, "--json").stdout)
    assert set(found) == {"blocks", "tasks"}
    for role in found["tasks"]:
        assert len(role["order"]) == role["tasks"] and "..." not in role["order"]
        assert all(name in role["order"] for name in (f"F0[{m}]" for m in range(8)) if "pp0" in role["role"])


def test_diff(here: Callable[..., Done]) -> None:
    """A param that only one of the plans has is set for that one."""
    words = ["diff", "data_parallel", PLAN[0], *WORDS, "--set", "S=4", "--set", "D=4"]
    done = here(*words)
    assert (done.returncode, done.stderr) == (0, "") and fits(done.stdout)
    assert "data_parallel" in done.stdout and "one_f_one_b" in done.stdout and "bubble" in done.stdout
    assert json.loads(here(*words, "--json").stdout)
    done = here("diff", "data_parallel", "one_f_one_bee.ssp", *WORDS)
    assert (done.returncode, done.stdout) == (1, "") and "one_f_one_bee.ssp" in done.stderr


def test_diff_of_two_settings(here: Callable[..., Done]) -> None:
    words = ["diff", PLAN[0], *WORDS, "--set", "M=4", "--and", "M=8"]
    done = here(*words)
    assert (done.returncode, done.stderr) == (0, "") and "M=4 to M=8" in done.stdout
    found = json.loads(here(*words, "--json").stdout)
    assert (found["before"], found["after"]) == ("M=4", "M=8")
    one, other = (json.loads(here("simulate", *PLAN, "--set", m, "--json").stdout) for m in ("M=4", "M=8"))
    assert (
        found["figures"]["bubble"]["before"] == one["bubble"] != other["bubble"] == found["figures"]["bubble"]["after"]
    )
    done = here("diff", PLAN[0], *WORDS)
    assert done.returncode == 2 and "--and" in done.stderr


def test_sweep(here: Callable[..., Done], tmp_path: Path) -> None:
    """Each setting is simulated as `simulate` does it; a refused one is a row with its reason."""
    words = ["sweep", *PLAN, "--set", "S=2,4", "--set", "M=4,8,3"]
    done = here(*words, "--html", "sweep.html")
    assert done.returncode == 0 and fits(done.stdout) and "E0203: cannot split" in done.stdout.replace("\n", " ")
    found = json.loads(here(*words, "--json").stdout)
    assert [s["params"] for s in found["settings"]] == [{"S": s, "M": m} for s in (2, 4) for m in (4, 8, 3)]
    assert [s["refused"]["code"] if s["refused"] else None for s in found["settings"]] == [None, None, "E0203"] * 2
    alone = json.loads(here("simulate", *PLAN, "--set", "S=4", "--set", "M=8", "--json").stdout)
    assert (
        found["settings"][4]["step_s"] == alone["step_s"] and found["settings"][4]["peak_bytes"] == alone["peak_bytes"]
    )
    assert all(s["device_s"] == s["step_s"] * s["devices"] for s in found["settings"] if s["refused"] is None)
    best = min((s for s in found["settings"] if s["refused"] is None), key=lambda s: s["device_s"])
    assert found["best"] == best["params"] and done.stdout.count("  best\n") == 1
    page = (tmp_path / "sweep.html").read_text()
    done = here("sweep", *PLAN, "--set", "Q=2,4")
    assert (done.returncode, done.stdout) == (1, "") and "E0204" not in done.stderr and "`Q`" in done.stderr
    assert page.count("</script>") == 2 and not any(f'{where}="http' in page for where in ("src", "href"))


def test_a_sweep_of_what_the_plan_says(here: Callable[..., Done], tmp_path: Path) -> None:
    text = (tmp_path / "one_f_one_b.ssp").read_text()
    opened = re.sub(r"^param (S|M) = (\d+)", r"param \1 = \2 in [\2, 2 * \2]", text, flags=re.M)
    (tmp_path / "open.ssp").write_text(opened)
    found = json.loads(here("sweep", "open.ssp", *PLAN[1:], "--json").stdout)
    assert len(found["settings"]) == 4 and found["settings"][0]["params"].keys() == {"S", "M"}
    found = json.loads(here("sweep", "open.ssp", *PLAN[1:], "--set", "M=4,8", "--json").stdout)
    listed = list(dict.fromkeys(s["params"]["S"] for s in found["settings"]))
    assert [s["params"] for s in found["settings"]] == [{"M": m, "S": s} for m in (4, 8) for s in listed]
    assert len(listed) == 2
    found = json.loads(here("sweep", "open.ssp", *PLAN[1:], "--set", "M=4", "--set", "S=2", "--json").stdout)
    assert [s["params"] for s in found["settings"]] == [{"M": 4, "S": 2}]


@pytest.mark.parametrize("values", [["T"], ["T=a,2"], ["T=1,,2"], [], ["T=" + ",".join(map(str, range(2000)))]])
def test_a_sweep_of_nothing(here: Callable[..., Done], values: list[str]) -> None:
    done = here("sweep", *PLAN, *(word for value in values for word in ("--set", value)))
    assert (done.returncode, done.stdout) == (2, "") and "--set" in done.stderr


def test_a_sweep_in_which_nothing_fits(here: Callable[..., Done], tmp_path: Path) -> None:
    small = read_cluster_file(cluster_file("v100x32"), "v100x32").text
    (tmp_path / "small.toml").write_text(re.sub(r"memory_gib = [\d.]+", "memory_gib = 0.001", small))
    done = here("sweep", PLAN[0], "--model", "gpt", "--cluster", "small.toml", "--set", "M=4,8")
    assert done.returncode == 1 and "no setting fits" in done.stdout and "over by" in done.stdout


@pytest.mark.parametrize("words", [["simulate"], ["check"], ["show"], ["diff", "--and", "M=2"]], ids=" ".join)
def test_a_cluster_is_read_once(
    here: Callable[..., Done], words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So what is said of a plan is of one cluster, also where somebody writes its file meanwhile."""
    own, reads = tmp_path / "own.toml", []
    own.write_text(read_cluster_file(cluster_file("v100x32"), "v100x32").text)

    def read(path: Path, name: str) -> Source:
        reads.append(path)
        return read_cluster_file(path, name)

    monkeypatch.setattr("ssdsl.cluster.load.read_cluster_file", read)
    command, *options = words
    view = ["memory"] if command == "show" else []
    done = here(command, "one_f_one_b.ssp", *view, "--model", "gpt", "--cluster", str(own), *options)
    assert done.returncode == 0 and reads == [own], done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["simulate", PLAN[0], "--model", "gpt", "--cluster", "v10x32"], "did you mean `v100x32`?"),
        (["show", PLAN[0], "memory", "--model", "gpt", "--cluster", "a100"], "E0601"),
        (["simulate", "megatron", "--model", "gpt", "--set", "T=4", "--set", "D=2", "--cluster", "h200x8"], "E0610"),
    ],
)
def test_a_wrong_cluster(here: Callable[..., Done], words: list[str], said: str) -> None:
    done = here(*words)
    assert (done.returncode, done.stdout) == (1, "") and said in done.stderr
