"""docs/clusters.md: its commands print what stands there."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from ssdsl.cli.main import main

PAGE = (Path(__file__).parent.parent.parent / "docs" / "clusters.md").read_text("utf-8")
FILES = dict(re.findall(r"^<!-- name: (\w+\.ssp) -->\n```ssp\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
COMMANDS = re.findall(r"^```\n\$ ssdsl ([^\n]*)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(("command", "printed"), COMMANDS, ids=[command.split()[0] for command, _ in COMMANDS])
def test_a_command_prints_what_stands_there(
    command: str,
    printed: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The files for schedulers are results; a warning is what `check` says beside its tables."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["ssdsl", *shlex.split(command)])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    assert ended.value.code in (0, None)
    assert printed.strip() in (said.out if command.startswith("launch") else said.err)


def test_there_are_commands() -> None:
    assert len(COMMANDS) == 2
