"""docs/cookbook.md: its plans train as one device does, its numbers are the simulator's, its commands print what stands
there."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from bench.fuzz.trial import try_plan
from ssdsl.cli.main import main
from ssdsl.cli.terminal import PIPED_WIDTH, results
from ssdsl.cluster.load import load_cluster
from ssdsl.compile import compile_source
from ssdsl.runtime.options import Training
from ssdsl.show.view import seconds, size
from ssdsl.simulate.simulate import simulate
from ssdsl.text.source import Source
from tests.captured import captured

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "cookbook.md").read_text("utf-8")
FILES = dict(re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", PAGE, re.M | re.S))
PLANS = dict(re.findall(r"^<!-- name: (\w+\.ssp) -->\n(?:<!--[^\n]*\n)?```ssp\n(.*?)^```", PAGE, re.M | re.S))
MODELS = dict(re.findall(r"^<!-- name: (\w+\.ssp) -->\n<!-- model: (\S+) -->", PAGE, re.M))
COMMANDS = re.findall(r"^\$ ssdsl ([^\n]*)\n(.*?)(?=^\$ |^```)", PAGE, re.M | re.S)
# numbers in the text: those of a changed plan, or with other params, in the setting of the recipe's command
CLAIMS = {
    "fsdp_tp.ssp": ("split model.weights by row into dp\n", "", [{}], "a device needs 114 GB and has 84.9 GB"),
    "hsdp.ssp": ("row into gpu", "row into node, gpu", [{}], "7.42 GB and 3.18 s: it sends 505 GB"),
    "long.ssp": ("", "", [{"C": 1}], "94.4 GB for it and 12.5 s"),
    "words.ssp": ("split model by vocab into tp = nearly_equal(V, T)\n", "", [{}], "nearly_equal` a step takes 132 ms"),
    "lines.ssp": ("", "", [{}, {"R": 1}], "911 ms became 1.17 s, 64.5 GB became 18 GB"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the page."""
    folder = tmp_path_factory.mktemp("cookbook")
    for name, text in (FILES | PLANS).items():
        (folder / name).write_text(text)
    return folder


def spec_of(plan: str, folder: Path) -> str:
    """The small model that a plan is tried on."""
    spec = MODELS.get(plan, "gpt:tiny,hidden=32,seq=16,vocab=64")
    return f"{folder}/{spec}" if spec.partition(":")[0] in FILES else spec


@pytest.mark.thinned(11)
@pytest.mark.parametrize("name", PLANS)
def test_a_plan_trains_as_one_device(name: str, folder: Path) -> None:
    """It is proved, and run in this process beside the single device."""
    outcome = try_plan(*captured(spec_of(name, folder)), PLANS[name], Training(2, optimizer="sgd", lr=0.02))
    assert outcome.kind == "equal", outcome.text


@pytest.mark.slow
@pytest.mark.parametrize("name", CLAIMS)
def test_numbers_in_the_text(name: str) -> None:
    before, after, changes, text = CLAIMS[name]
    words = next(words for words, _ in COMMANDS if words.startswith(f"simulate {name}"))
    params = {param: int(value) for param, value in re.findall(r"--set (\w+)=(\d+)", words)}
    options = dict(re.findall(r"--(model|cluster) (\S+)", words))
    graph, cluster = captured(options["model"], meta=True)[1], load_cluster(options["cluster"])
    said = set()
    for change in changes:
        plan = Source(name, PLANS[name].replace(before, after))
        compiled = compile_source(plan, graph, params | change, ROOT, cluster)
        report = simulate(compiled.program, compiled.source, cluster)
        between_nodes = sum(t.size_bytes for t in report.traffic if t.level == "cluster")
        said |= {size(report.peak_bytes), seconds(report.step_s), size(between_nodes)}
        said |= {size(d.capacity_bytes or 0) for d in report.devices}
    assert re.sub(r"\s+", " ", PAGE).count(text) == 1
    assert set(re.findall(r"[\d.]+ (?:GB|ms|s)\b", text)) <= said


@pytest.mark.slow
def test_what_a_recompute_saves() -> None:
    table = PAGE.partition("### What a recompute saves")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| [^|]*\| (?:`((?:[^`|]|\\\|)*)` )?\| (\S+ GB) \| (\S+ \w+) \|$", table, re.M)
    graph, cluster = captured("llama:7b,batch=16,dtype=bf16", meta=True)[1], load_cluster("h100x8")
    peaks = []
    for line, peak, step in rows:
        plan = Source("lines.ssp", PLANS["lines.ssp"] + line.replace("\\|", "|") + "\n")
        compiled = compile_source(plan, graph, {"R": 0}, ROOT, cluster)
        report = simulate(compiled.program, compiled.source, cluster)
        assert (size(report.peak_bytes), seconds(report.step_s)) == (peak, step), line
        peaks.append(report.peak_bytes)
    assert len(peaks) == 5 and max(peaks[1:]) < peaks[0]


@pytest.mark.slow
@pytest.mark.parametrize(("words", "shown"), COMMANDS, ids=[words for words, _ in COMMANDS])
def test_commands_print_what_the_page_shows(
    words: str, shown: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the order of the page: one resumes what another one saved."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(results, "width", PIPED_WIDTH)
    monkeypatch.setattr(sys, "argv", ["ssdsl", *shlex.split(words)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert re.fullmatch(".*".join(map(re.escape, shown.strip().split("..."))), capsys.readouterr().out.strip(), re.S)


@pytest.mark.slow
def test_a_pretrained_model_is_tuned_on_two_processes_and_loads_in_transformers(folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    before = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=256, **sizes))
    before.save_pretrained(folder / "pretrained")
    (commands,) = re.findall(r"^```\n(torchrun.*?)^```", PAGE, re.M | re.S)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    launchers = {"torchrun": [sys.executable, "-m", "torch.distributed.run", "--standalone"], "cp": ["cp"]}
    said = ""
    for name, *words in map(shlex.split, commands.splitlines()):
        command = [*launchers.get(name, [sys.executable, "-m", "ssdsl"]), *words]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        said += done.stdout
    assert re.search(r"^step 18 loss 5\.\d$", said, re.M), said
    after = transformers.LlamaForCausalLM.from_pretrained(folder / "tuned")
    moved = [(new - old).abs().max() for new, old in zip(after.parameters(), before.parameters(), strict=True)]
    assert 0 < max(moved) < 0.01


def test_every_file_and_statement_is_tried() -> None:
    assert FILES.keys() == {"frozen.py", "lora.py", "towers.py", "weather.py", "fine.py"}
    assert len(PLANS) == 15 and len(COMMANDS) == 18
    assert CLAIMS.keys() <= PLANS.keys() and MODELS.keys() <= PLANS.keys()
