"""Every command works where only the packages are installed that the project declares: no NumPy, no transformers."""

import json
import re
import tomllib
from pathlib import Path

import pytest

import ssdsl
from tests.bare import Bare, bare
from tests.cli.commands import CALLS, ROOT, commands, write_readme

# commands of one process, so that torch is loaded once; the names of those that end badly are printed
CALL = """
import json, sys
from ssdsl.cli.main import main

for name, words in json.load(open("calls.json")).items():
    sys.argv = ["ssdsl", *words.split()]
    try:
        main()
    except SystemExit as ended:
        if ended.code:
            print(f"failed: {name}", flush=True)
"""


@pytest.fixture(scope="module")
def declared(tmp_path_factory: pytest.TempPathFactory) -> Bare:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return bare(tmp_path_factory.mktemp("declared"), project["dependencies"], Path(ssdsl.__path__[0]))


def test_every_command_has_a_call() -> None:
    assert CALLS.keys() == dict(commands()).keys()


@pytest.mark.parametrize("package", ["numpy", "transformers", "hypothesis"])
def test_it_is_not_there(declared: Bare, tmp_path: Path, package: str) -> None:
    ended = declared.run("-c", f"import ssdsl, {package}", cwd=tmp_path)
    assert f"No module named '{package}'" in ended.stderr


@pytest.mark.slow
def test_every_command(declared: Bare, tmp_path: Path) -> None:
    """But for the one that measures for long; the server and those of safetensors ask for a package."""
    write_readme(tmp_path)
    calls = {name: words for name, words in CALLS.items() if name != "clusters measure"}
    (tmp_path / "calls.json").write_text(json.dumps(calls))
    ended = declared.run("-c", CALL, cwd=tmp_path, timeout_s=600)
    assert ended.returncode == 0, ended.stderr
    failed = re.findall("^failed: (.*)$", ended.stdout, re.MULTILINE)
    assert failed == ["lsp", "checkpoint to-safetensors", "checkpoint from-safetensors"], ended.stderr
    assert "pip install 'ssdsl[lsp]'" in ended.stderr
    assert ended.stderr.count("E0534") == 2 and "NumPy" not in ended.stderr
    assert "equal: 19 tensors on 4 devices and on one" in ended.stdout
