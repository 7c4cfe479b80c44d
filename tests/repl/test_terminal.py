"""The session as a user has it: through a real terminal once, and from a pipe."""

import io
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pexpect
import pytest

from ssdsl.cli.main import main
from ssdsl.lang.parse import parse
from ssdsl.lang.read import read_source
from ssdsl.model.graph import Graph
from ssdsl.model.graph_file import write_graph
from ssdsl.plan.interpret import interpret_all

ROOT = Path(__file__).parent.parent.parent
COMMAND = ["-m", "ssdsl", "repl", "--model", "gpt.graph"]


def environment(folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "TERM": "xterm",
        "NO_COLOR": "1",
        "XDG_STATE_HOME": str(folder / "state"),
        "PROMPT_TOOLKIT_NO_CPR": "1",  # this terminal does not say where its cursor is
    }


def test_in_a_terminal(gpt: Graph, tmp_path: Path) -> None:
    """With a captured graph, which needs no torch; tests/cli/test_options.py has a session that captures its model."""
    (tmp_path / "gpt.graph").write_bytes(write_graph(gpt, {}))
    child = pexpect.spawn(
        sys.executable, COMMAND, cwd=tmp_path, env=environment(tmp_path), dimensions=(40, 120), encoding="utf-8"
    )
    child.expect(":help lists the commands", timeout=60)
    child.timeout = 60

    def enter(text: str, said: str, keys: str = "\r") -> None:
        child.expect("ssp> ")
        child.send(text + keys)
        child.expect(said)

    enter("mesh gpus(dp = 2)", r"mesh gpus: 2 devices \(dp = 2\)")
    enter("split model by bacth into dp", r"error\[E0204\]")
    child.expect("plan:2:16")
    child.expect("did you mean `batch`")
    child.expect("ssp> ")
    child.send("split model by bat\t")  # one word fits: it is completed
    child.expect(r"bat[\s\S]*?ch")  # drawn in one piece or in two
    child.send(" into dp\r")
    child.expect(r"split \d+ operators by batch into 2 parts, dp")
    enter("let nonsense = 3", "let nonsense: 3")
    enter(":undo", "took back `let nonsense = 3`")
    enter("for s in 0..1:", "for")
    child.send("assign model to gpus\r\r")
    child.expect(r"assigned \d+ operators to gpus \(2 devices\)")
    enter("this is given up", "given up", keys="\x03")
    enter(":save plan.ssp", "saved plan.ssp: 3 statements")
    enter(":quit", pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
    path = tmp_path / "plan.ssp"
    assert path.read_text() == (
        "mesh gpus(dp = 2)\nsplit model by batch into dp\nfor s in 0..1:\n    assign model to gpus\n"
    )
    assert interpret_all(parse(read_source(path)), gpt)[0].devices == 2
    assert ":save plan.ssp" in (tmp_path / "state" / "ssdsl" / "repl_history").read_text()


@pytest.mark.parametrize(("last", "status"), [("2 * D", 0), ("2 * E", 1)])
def test_from_a_pipe(
    gpt: Graph, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], last: str, status: int
) -> None:
    text = f"param D = 2\nmesh gpus(\n    dp = D,\n)\nif D > 1:\n    split model by batch into dp\n{last}\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    monkeypatch.setattr(sys, "argv", ["ssdsl", *COMMAND[2:]])
    monkeypatch.setattr("ssdsl.cli.commands.repl.captured", lambda model, **_: SimpleNamespace(graph=gpt))
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[:2] == ["param D = 2", "mesh gpus: 2 devices (dp = 2)"] and "by batch into 2 parts, dp" in lines[2]
    assert lines[3:] == ([] if status else ["4"])
    assert int(ended.value.code or 0) == status and ("error[E0201]" in err) == bool(status) and "\x1b" not in out


@pytest.mark.parametrize(
    ("words", "said"), [(["megatorn"], "did you mean `megatron`"), (["megatron", "--set", "TT=2"], "E0225")]
)
def test_a_wrong_plan_shows_before_the_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["ssdsl", "repl", *words, "--model", "nowhere.py:net"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1 and said in capsys.readouterr().err
