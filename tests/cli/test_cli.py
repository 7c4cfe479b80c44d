"""The command line: exit statuses, streams, suggestions, help, and what each command prints."""

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ssdsl as package
from ssdsl import interrupts
from ssdsl.cli.main import main
from ssdsl.model.ops import families
from ssdsl.model.ops.rows import ROWS
from ssdsl.run.launch import launch
from ssdsl.run.results import RankResult, RunResult
from ssdsl.runtime.options import Training
from ssdsl.simulate.profile.profile import Profile, ProfiledMachine
from ssdsl.simulate.profile.read_costs import read_costs
from ssdsl.text.diagnostic import Diagnostic
from tests.cli.commands import Done, call

ROOT = Path(__file__).parent.parent.parent
FAMILIES = Path(families.__path__[0])
MODEL = """\
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)

    def forward(self, x):
        return (self.two(torch.relu(self.one(x))) ** 2).mean()

def net():
    return Net(), {"x": torch.randn(4, 8)}, {"x": ("batch", "feature")}
"""


def ssdsl(*words: str, folder: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a user would, with no terminal."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    command = [sys.executable, "-m", "ssdsl", *words]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120)


@pytest.fixture
def here(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """Run the command in this process, where torch is loaded already."""

    path = sys.path.copy()

    def run(*words: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["ssdsl", *words])
        monkeypatch.setattr(sys, "path", path.copy())  # as each command has it, whatever others have added
        with pytest.raises(SystemExit) as ended:
            main()
        return Done(int(ended.value.code or 0), *capsys.readouterr())

    return run


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A user's model, of which the first command keeps the graph."""
    path = tmp_path_factory.mktemp("model") / "net.py"
    path.write_text(MODEL)
    return f"{path}:net"


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["models"], ["plans"], ["explain", "E0301"]])
def test_no_torch_is_loaded(words: list[str]) -> None:
    code = (
        "import sys\nimport ssdsl\nfrom ssdsl.cli.main import main\n"
        f"sys.argv = ['ssdsl', *{words!r}]\n"
        "try:\n    main()\nexcept SystemExit as e:\n    assert not e.code\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, cwd=ROOT)


def test_the_package_shows_its_names() -> None:
    """Those for users, each of which is there, and none of what it imports itself; the wheel says that it has types."""
    code = "import sys, ssdsl; print(*dir(ssdsl)); assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    names = done.stdout.split()
    assert {"engine", "model_of", "Op", "EngineError", "__version__"} <= set(names)
    assert not {"Any", "TYPE_CHECKING", "importlib", "_PLACES"} & set(names)
    assert all(getattr(package, name) for name in names)
    assert (Path(package.__path__[0]) / "py.typed").exists()


def test_help_of_a_plan_lists_its_params(here: Callable[..., Done]) -> None:
    for words in (["run", str(ROOT / "examples/megatron.ssp"), "--help"], ["check", "-h", "megatron"]):
        text = here(*words).stdout
        assert "T=N" in text and "tensor-parallel width" in text and "--set" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["chck"], "Did you mean 'check'?"),
        (["run", "--modle", "gpt"], "--model"),
        (["run", "megatron"], "Missing option '--model'"),
        (["run", "megatron", "--model", "gpt", "--set", "T"], "not NAME=NUMBER"),
        (["run", "megatron", "--model", "gpt", "--set", "T=many"], "not NAME=NUMBER"),
        (["run", "megatron", "--model", "gpt", "--steps", "0"], "should be greater than or equal to 1"),
        (["show", "megatron", "opps", "--model", "gpt"], "there is no `opps` here; did you mean `ops`?"),
        (["explain", "E9999"], "no diagnostic"),
        (["explain", "203"], "there is no diagnostic `203`; did you mean `E0203`?"),
    ],
)
def test_wrong_usage_is_2_and_on_stderr(words: list[str], said: str) -> None:
    done = call(*words, folder=ROOT, COLUMNS="200")
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["check", "megatorn", "--model", "gpt"], "did you mean `megatron`"),
        (["check", "megatron", "--model", "gtp"], "did you mean `gpt`?"),
        (["run", "megatron", "--model", "nowhere.py:net"], "cannot read `nowhere.py`"),
        (["fmt", "nowhere.ssp"], "there is no plan `nowhere.ssp`"),
    ],
)
def test_a_wrong_plan_or_model_is_1_and_on_stderr(here: Callable[..., Done], words: list[str], said: str) -> None:
    done = here(*words)
    assert (done.returncode, done.stdout) == (1, "")
    assert said in done.stderr and "Traceback" not in done.stderr and "\x1b" not in done.stderr


def test_a_mistake_in_the_plan_shows_before_the_model_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "bad.ssp").write_text("splt model by batch into dp\n")
    done = ssdsl("check", "bad.ssp", "--model", "nowhere.py:net", folder=tmp_path)
    assert done.returncode == 1 and 0 <= done.stderr.find("bad.ssp:1:1") < done.stderr.find("nowhere.py")


def test_colour_only_where_it_is_wanted(tmp_path: Path) -> None:
    assert "\x1b[" in ssdsl("check", "nowhere", "--model", "gpt", FORCE_COLOR="1").stderr
    assert "\x1b[" not in ssdsl("check", "nowhere", "--model", "gpt", FORCE_COLOR="1", NO_COLOR="1").stderr.replace(
        "\x1b[1m", ""
    )


@pytest.mark.parametrize("words", ["plans --json", "models --json", "--help", "explain"])
def test_a_reader_that_has_gone_is_no_mistake_of_the_plan(words: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as gone:
        ended = subprocess.run([sys.executable, "-m", "ssdsl", *words.split()], stdout=gone, stderr=subprocess.PIPE)
    assert (ended.returncode, ended.stderr) == (141, b"")


def test_streams_may_be_closed() -> None:
    command = f"{sys.executable} -m ssdsl models"
    ended = subprocess.run(["sh", "-c", f"{command} >&- <&-"], stderr=subprocess.PIPE)
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_a_bug_of_ours_is_3_and_keeps_the_traceback(tmp_path: Path) -> None:
    code = "import sys; import ssdsl.cli.main as m\ndef broken(**_): raise ValueError('oops')\nm.app = broken; m.main()"
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True)
    (saved,) = tmp_path.glob("ssdsl-bug-*.txt")
    assert done.returncode == 3 and "Traceback" not in done.stderr
    assert (
        saved.name in done.stderr.replace("\n", "") and "oops" in saved.read_text() and "Traceback" in saved.read_text()
    )


def test_an_error_while_a_diagnostic_is_shown_is_a_bug_of_ours(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_: Iterable[Diagnostic]) -> None:
        raise ValueError("oops")

    monkeypatch.setattr("ssdsl.cli.main.show_diagnostics", broken)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["ssdsl", "check", "nowhere", "--model", "gpt"])
    with pytest.raises(SystemExit) as ended:
        main()
    (saved,) = tmp_path.glob("ssdsl-bug-*.txt")
    assert ended.value.code == 3 and "oops" in capsys.readouterr().err and "oops" in saved.read_text()


def test_models_and_plans_as_json(here: Callable[..., Done]) -> None:
    """Values have their own types."""
    models = {m["model"]: m for m in json.loads(here("models", "--json").stdout)}
    assert {"gpt:tiny", "gpt:175b", "swin:1.8b"} <= set(models)
    tiny = models["gpt:tiny"]
    assert tiny["trains_on_a_laptop"] is True and tiny["is_default"] is True and tiny["numbers"]["hidden"] == 128
    listed = json.loads(here("plans", "--json").stdout)
    plans = {p["plan"]: p for p in listed["plans"]}
    assert plans["megatron"]["params"] == {"D": 1, "T": 2, "S": 2, "M": 4, "R": 0}
    library = {f["file"]: f for f in listed["library"]}
    assert "one_f_one_b(stage, M)" in library["pipeline"]["functions"]


def test_every_operator_with_a_row_is_listed(here: Callable[..., Done]) -> None:
    listed = {o["operator"]: o for o in json.loads(here("ops", "--json").stdout)}
    assert listed.keys() == {name.removeprefix("aten::") for name in ROWS}
    assert all((FAMILIES / operator["file"]).exists() for operator in listed.values())
    dimensions, file = "... in, out in, out+? -> ... out", "contraction.py"
    assert listed["linear"] == {"operator": "linear", "dimensions": dimensions, "merged_by": "", "file": file}
    assert (listed["softmax"]["merged_by"], listed["softmax"]["file"]) == ("softmax_parts", "attention_and_softmax.py")


def test_a_step_without_a_gpu(here: Callable[..., Done], model: str) -> None:
    """Only with `--device`; its table is in the JSON, too."""
    words = ["check", "data_parallel", "--model", model]
    said = "the host waits for the GPU"
    assert said in here(*words, "--device", "cuda").stdout and said not in here(*words).stdout
    (waits,) = json.loads(here(*words, "--device", "cuda", "--json").stdout)["waits"]
    assert (waits["waits"], waits["why"], waits["operator"]) == (1, "loss and norm", "to")


def test_mistakes_as_json(here: Callable[..., Done], model: str, tmp_path: Path) -> None:
    """One object a line on stderr, nothing on stdout; without --json they are text again."""
    plan = tmp_path / "p.ssp"
    plan.write_text("mesh gpus(dp = 2)\nsplit model by batch into dp\nassgn model to gpus\n")
    words = ["check", str(plan), "--model", model]
    done = here(*words, "--json")
    assert (done.returncode, done.stdout) == (1, "")
    (found,) = map(json.loads, done.stderr.splitlines())
    keys = "code severity message file line column end label others notes help edits"
    assert list(found) == keys.split()
    assert (found["severity"], found["file"], found["line"], found["column"]) == ("error", str(plan), 3, 1)
    assert found["end"] == {"line": 3, "column": 6} and "assign" in " ".join(found["help"])
    place = {key: found[key] for key in ("file", "line", "column", "end")}
    assert found["edits"] == [{**place, "text": "assign"}]
    assert f"error[{found['code']}]: {found['message']}" in here(*words).stderr
    option = json.loads(here("check", "megatron", "--model", "gtp", "--json").stderr)
    assert option["code"] == "E0301" and option["file"] == "--model" and option["column"] == 1
    nowhere = json.loads(here("check", "no_such_plan", "--model", "gpt", "--json").stderr)
    assert nowhere["code"] == "E0101" and nowhere["file"] is None and nowhere["end"] is None


def test_every_listed_model_and_code_is_explained(here: Callable[..., Done]) -> None:
    text = here("explain").stdout
    assert "E0254 A slice names an axis that the mesh does not have: `gpus[pipe = 0]`." in text
    assert "E0101" in text and "E0301" in text and "E0501" in text
    assert "path/to/file.py:function" in here("explain", "error[e0301]").stdout
    assert here("explain", "E0203").stdout.startswith("E0203: cannot split ... into ... equal parts\n")


def test_fmt_rewrites_and_checks(here: Callable[..., Done], tmp_path: Path) -> None:
    plan = tmp_path / "p.ssp"
    plan.write_text("let  x=1  # one\n")
    assert here("fmt", "--check", str(plan)).returncode == 1 and plan.read_text() == "let  x=1  # one\n"
    assert here("fmt", str(plan)).returncode == 0 and plan.read_text() == "let x = 1  # one\n"
    assert here("fmt", "--check", str(plan)).returncode == 0
    assert list(tmp_path.iterdir()) == [plan]


@pytest.mark.parametrize("view", ["dims", "ops", "tasks", "comm"])
def test_show(here: Callable[..., Done], view: str, model: str) -> None:
    done = here("show", "data_parallel", view, "--model", model)
    assert done.returncode == 0, done.stderr
    assert all(len(line) <= 120 for line in done.stdout.splitlines())
    assert json.loads(here("show", "data_parallel", view, "--model", model, "--json").stdout)


def test_check(here: Callable[..., Done], model: str) -> None:
    done = here("check", "data_parallel", "--model", model, "--set", "D=4", "--json")
    assert json.loads(done.stdout)["devices"] == 4


def test_a_plan_with_more_devices_than_processes(here: Callable[..., Done], model: str) -> None:
    done = here("run", "data_parallel", "--model", model, "--processes", "1")
    assert done.returncode == 1 and "E0506" in done.stderr


ON_META = """
import torch

class Net(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x).mean()

def net():
    with torch.device("meta"):
        return Net(4, 4), {"x": torch.empty(2, 4)}, {"x": ("batch", "feature")}
"""


def test_a_model_without_numbers_does_not_run(here: Callable[..., Done], tmp_path: Path) -> None:
    (tmp_path / "on_meta.py").write_text(ON_META)
    done = here("run", "data_parallel", "--model", f"{tmp_path / 'on_meta.py'}:net")
    assert done.returncode == 1 and "E0501" in done.stderr


def test_run_reports(here: Callable[..., Done], model: str, tmp_path: Path) -> None:
    done = here("run", "data_parallel", "--model", model, "--steps", "2", "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert "median step time" in done.stdout and "all_reduce" in done.stdout and "peak memory" in done.stdout
    assert (tmp_path / "out" / "program" / "main.py").exists()
    assert (tmp_path / "out" / "results" / "rank1.json").exists()


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_resumed_run_without_steps_left_says_so(
    here: Callable[..., Done], model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: list[str]
) -> None:
    (tmp_path / ".metadata").touch()
    ranks = tuple(RankResult(rank, "g", (), (), 1 << 20, {}, first=3) for rank in range(2))
    monkeypatch.setattr("ssdsl.run.launch.launch", lambda *_, **__: RunResult(0, ranks, tmp_path))
    words = ["--steps", "2", "--resume", str(tmp_path), "--trace", str(tmp_path / "t.json"), *more]
    done = here("run", "data_parallel", "--model", model, *words)
    assert done.returncode == 0, done.stderr
    assert "the checkpoint is of step 3, and --steps is 2: nothing left to train" in done.stderr
    assert not (tmp_path / "t.json").exists() and "median" not in done.stdout


RUN = "run data_parallel --model gpt"


def test_a_norm_of_zero_is_refused_before_the_model_is_loaded(here: Callable[..., Done]) -> None:
    done = here(*RUN.split(), "--clip", "0")
    assert done.returncode == 2 and "'--clip'" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (f"{RUN} --resume --steps 5", "--resume"),
        (f"{RUN} --steps 5 -c --json", "-c"),
        ("clusters measure --out --help", "--out"),
    ],
)
def test_an_option_does_not_take_another_one_for_its_value(here: Callable[..., Done], words: str, said: str) -> None:
    done = here(*words.split())
    assert done.returncode == 2 and f"{said} needs a value in front of --" in done.stderr


def test_a_loss_that_is_no_number_has_the_step_of_the_whole_run(
    here: Callable[..., Done], model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".metadata").touch()
    ranks = tuple(RankResult(rank, "g", (1.0, math.nan), (0.1, 0.1), 1 << 20, {}, first=3) for rank in range(2))
    monkeypatch.setattr("ssdsl.run.launch.launch", lambda *_, **__: RunResult(2, ranks, tmp_path))
    words = ["--steps", "5", "--resume", str(tmp_path), "--allow-nan"]
    assert "E0515]: the loss is nan from step 4 on" in here("run", "data_parallel", "--model", model, *words).stderr


def test_without_a_checkpoint_to_resume_nothing_starts(
    here: Callable[..., Done], model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ssdsl.run.launch.launch", lambda *_, **__: pytest.fail("it trains"))
    for folder, reason in (("none", "there is no folder"), (".", "holds no checkpoint")):
        done = here("run", "data_parallel", "--model", model, "--resume", str(tmp_path / folder))
        assert done.returncode == 1 and "error[E0530]" in done.stderr and reason in done.stderr


@pytest.mark.parametrize("option", ["--save", "--trace", "--profile", "--out"])
def test_what_cannot_be_written_is_refused_before_training(
    here: Callable[..., Done], model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    monkeypatch.setattr("ssdsl.run.launch.launch", lambda *_, **__: pytest.fail("it trains"))
    (tmp_path / "file").write_text("")
    done = here("run", "data_parallel", "--model", model, option, str(tmp_path / "file" / "new"))
    assert done.returncode == 1 and ("E0125" in done.stderr or "E0508" in done.stderr)
    assert str(tmp_path / "file" / "new") in done.stderr


def test_a_profile_refuses_its_file_and_optimizer_before_it_trains(
    here: Callable[..., Done], model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ssdsl.run.launch.launch", lambda *_, **__: pytest.fail("it trains"))
    words = ["profile", "data_parallel", "--model", model, "--out"]
    done = here(*words, str(tmp_path / "none" / "times.json"))
    assert done.returncode == 1 and "E0125" in done.stderr
    done = here(*words, str(tmp_path / "times.json"), "--optimizer", "adamm")
    assert done.returncode == 2 and "adamm" in done.stderr
    done = here(*words, str(tmp_path / "times.json"), "--optimizer", "sgd,momentun=0.9")
    assert done.returncode == 2 and "momentun" in done.stderr


def test_a_profile_of_several_runs_has_their_medians(
    here: Callable[..., Done], model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = iter((3.0, 50.0, 4.0))
    machine = ProfiledMachine("core", "2", 1, 2, 1)
    monkeypatch.setattr("ssdsl.cli.commands.profile.train", lambda *_: None)
    monkeypatch.setattr("ssdsl.cli.commands.profile.compared", lambda loaded: loaded)
    monkeypatch.setattr("ssdsl.simulate.profile.read_costs.lacking", lambda *_: ("an operator",))
    recorded = "ssdsl.run.profile.recorded_profile.recorded_profile"
    monkeypatch.setattr(recorded, lambda *_: Profile(machine, step_s=next(steps)))
    out = tmp_path / "times.json"
    assert here("profile", *["data_parallel,D=1"] * 3, "--model", model, "--out", str(out)).returncode == 0
    found = read_costs(out).profile
    assert found is not None and found.step_s == 4.0


@pytest.mark.parametrize(("command", "more"), [("sweep", ("--set", "D=1,2")), ("simulate", ())])
def test_a_page_is_refused_before_the_capture(
    command: str,
    more: tuple[str, ...],
    here: Callable[..., Done],
    model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(f"ssdsl.cli.commands.{command}.load", lambda *_, **__: pytest.fail("it captures"))
    done = here(command, "data_parallel", "--model", model, *more, "--html", str(tmp_path / "none" / "page.html"))
    assert done.returncode == 1 and "E0125" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        "capture {model} -o {file}.graph",
        "simulate data_parallel -m {model} --html {file}",
        "simulate data_parallel -m {model} --trace {file}",
        "sweep data_parallel -m {model} --set D=1,2 --html {file}",
        "search data_parallel -m {model} -o {file} --tries 3",
    ],
)
def test_a_command_replaces_what_it_has_written(
    words: str, here: Callable[..., Done], model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.py").write_text("")
    given = words.format(model=model, file="file").split()
    for _ in range(2):
        done = here(*given)
        assert done.returncode == 0, done.stderr
    (written,) = tmp_path.glob("file*")
    written.write_text("mine")
    done = here(*given)
    assert done.returncode == 1 and "E0125" in done.stderr
    assert written.read_text() == "mine"


def test_a_search_saves_into_its_own_plan(here: Callable[..., Done], model: str, tmp_path: Path) -> None:
    plan = tmp_path / "plan.ssp"
    plan.write_text("param D = 1 in [1, 2]\nmesh gpus(dp = D)\nsplit model by batch into dp\nassign model to gpus\n")
    done = here("search", str(plan), "-m", model, "-o", str(plan))
    assert done.returncode == 0, done.stderr
    assert "# D = " in plan.read_text()


def test_a_new_run_does_not_save_among_checkpoints_of_another(
    here: Callable[..., Done], model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ssdsl.run.launch.launch", lambda *_, **__: pytest.fail("it trains"))
    for option, name in (("--save", "a"), ("--out", "b/checkpoints")):
        saved = tmp_path / name
        saved.mkdir(parents=True)
        (saved / "latest").write_text("{}")
        words = [option, str(tmp_path / name.partition("/")[0])]
        done = here("run", "data_parallel", "--model", model, *words)
        assert done.returncode == 1 and "E0535" in done.stderr
        assert f"--resume {saved}" in done.stderr
        done = here("run", "data_parallel", "--model", model, *words, "--resume", str(tmp_path / "c"))
        assert done.returncode == 1 and "E0535" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [["--optimizer", "sgd"], ["--optimizer", "adamw", "--lr", "1e-3"]])
def test_verify(here: Callable[..., Done], model: str, optimizer: list[str]) -> None:
    done = here("verify", "data_parallel", "--model", model, *optimizer)
    assert done.returncode == 0, done.stderr
    assert "equal:" in done.stdout


@pytest.mark.slow  # tests/run/test_random.py compares numbers that are drawn, README.md runs `verify`
def test_verify_a_model_that_draws(here: Callable[..., Done], tmp_path: Path) -> None:
    model = str(Path(__file__).parent.parent / "models" / "noisy.py") + ":net"
    words = ["--seed", "7", "--steps", "2", "--optimizer", "sgd", "--generator", "philox"]
    words += ["--out", str(tmp_path / "kept")]
    done = here("verify", "data_parallel", "--model", model, *words)
    assert done.returncode == 0 and "equal:" in done.stdout, done.stderr
    (role,) = (tmp_path / "kept" / "program").glob("role_*.py")
    assert '"philox"' in role.read_text() and '"hash"' not in role.read_text()


def test_compile_replaces_only_programs(here: Callable[..., Done], model: str, tmp_path: Path) -> None:
    words = ["compile", "data_parallel", "--model", model, "--out"]
    assert "torchrun --nproc-per-node=2" in here(*words, str(tmp_path / "p")).stdout
    assert here(*words, str(tmp_path / "p")).returncode == 0
    source = Path(model.removesuffix(":net"))
    done = here(*words, str(source.parent))
    assert done.returncode == 1 and "E0507" in done.stderr and source.exists()
    done = here(*words, str(source / "sub"))
    assert done.returncode == 1 and "sub`: not a directory" in done.stderr and "E0508" in done.stderr


def test_a_search_refuses_a_folder_for_its_program_at_once(
    here: Callable[..., Done], model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ssdsl.sketch.search.search_of", lambda *_, **__: pytest.fail("it searches"))
    source = Path(model.removesuffix(":net"))
    for folder, code in ((source.parent, "E0507"), (source / "sub", "E0508")):
        done = here("search", "data_parallel", "--model", model, "--compile", str(folder))
        assert done.returncode == 1 and code in done.stderr


def test_show_program(here: Callable[..., Done], model: str) -> None:
    words = ["show", "data_parallel", "program", "--model", model]
    done = here(*words)
    assert done.returncode == 0 and "function block0 on gpus" in done.stdout and "all_reduce<dp>" in done.stdout
    assert json.loads(here(*words, "--json").stdout)["program"].startswith("program of ")
    assert here(*words, "--role", "gpus").stdout == done.stdout
    wrong = here(*words, "--role", "gpu")
    assert wrong.returncode == 2 and "did you mean" in wrong.stderr


def test_show_graph(here: Callable[..., Done], model: str) -> None:
    words = ["show", "data_parallel", "graph", "--model", model]
    done = here(*words)
    assert done.returncode == 0 and "linear(%x[batch, feature], %one.weight[" in done.stdout, done.stderr
    assert json.loads(here(*words, "--json").stdout) == {"graph": done.stdout}


def test_names_of_files_stand_as_they_are(here: Callable[..., Done], model: str, tmp_path: Path) -> None:
    page, trace = str(tmp_path / "a[red].html"), str(tmp_path / "b[/b].json")
    (tmp_path / "b[").mkdir()
    done = here("simulate", "data_parallel", "--model", model, "--html", page, "--trace", trace)
    assert done.returncode == 0 and {f"{page}:", f"{trace}:"} <= set(done.stderr.split())
    done = here("simulate", "data_parallel", "--model", model, "--html", page, "--trace", page)
    said = " ".join(done.stderr.replace("│", " ").split())  # in a box, whose lines a long path breaks
    assert done.returncode == 2 and "is the file of --trace" in said


def test_print_after_a_pass(here: Callable[..., Done], model: str) -> None:
    words = ["compile", "data_parallel", "--model", model]
    done = here(*words, *(f"--print-after={name}" for name in ("divide_dims", "shard_operators", "form_sections")))
    assert done.returncode == 0, done.stderr
    assert "# after divide_dims\nlowering of" in done.stdout
    assert "# after shard_operators" in done.stdout and "linear (linear) on gpus over (batch: dp)" in done.stdout
    wrong = here(*words, "--print-after", "shard_operator")
    assert wrong.returncode == 2 and "shard_operators" in wrong.stderr
    assert here(*words).returncode == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["show", "megatron", "tasks"],
        ["check", "megatron"],
        ["show", "megatron", "comm"],
    ],
)
def test_tables_fit_80_columns(words: list[str]) -> None:
    done = ssdsl(*words, "--model", "gpt:tiny", COLUMNS="80")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert all(len(line) <= 80 and not line.endswith(" ") for line in lines)
    if "tasks" not in words:
        assert "too narrow" not in done.stdout


def test_no_table_where_nothing_is_repeated(here: Callable[..., Done], model: str) -> None:
    text = here("check", "data_parallel", "--model", model).stdout
    assert "repeated work\nno work is repeated\n" in text


def test_output_in_ascii() -> None:
    done = ssdsl("plans", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr


@contextlib.contextmanager
def sigint(handler: Any) -> Iterator[None]:
    """A context with this handler of Ctrl-C. The tests may themselves run where it is ignored (`make test &`)."""
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        interrupts.forget_interrupt()


def test_a_ctrl_c_that_an_import_swallows_is_no_bug(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As NumPy swallows it while torch imports it."""

    def swallows(prog_name: str) -> None:
        with contextlib.suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(10)
        with pytest.raises(KeyboardInterrupt):  # no processes start any more
            launch(tmp_path, Training(), processes=1, out=tmp_path)
        raise RecursionError

    monkeypatch.setattr("ssdsl.cli.main.app", swallows)
    with sigint(signal.default_int_handler), pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
    assert not list(tmp_path.iterdir())


def test_a_background_job_does_not_hear_a_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell has it ignored there: it is for the job in front."""

    def is_sent(prog_name: str) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("ssdsl.cli.main.app", is_sent)
    with sigint(signal.SIG_IGN):
        main()
        assert not interrupts.was_interrupted()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
