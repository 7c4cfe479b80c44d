"""What the extras `models` and `lsp` add, in their lowest versions."""

import json
import subprocess
import sys
from pathlib import Path

COMMAND = str(Path(sys.executable).with_name("ssdsl"))


def test_models_of_transformers(tmp_path: Path) -> None:
    """One with experts, which reads most of the library's insides."""
    for words in ("prove experts --model mixtral", "prove data_parallel --model hf:qwen3,num_hidden_layers=2"):
        done = subprocess.run([COMMAND, *words.split()], cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0 and "proved in" in done.stdout, done.stderr


def test_the_server_answers() -> None:
    asked = [
        {"id": 1, "method": "initialize", "params": {"processId": None, "rootUri": None, "capabilities": {}}},
        {"id": 2, "method": "shutdown"},
        {"method": "exit"},
    ]
    bodies = [json.dumps({"jsonrpc": "2.0", **message}).encode() for message in asked]
    given = b"".join(b"Content-Length: %d\r\n\r\n%s" % (len(body), body) for body in bodies)
    done = subprocess.run([COMMAND, "lsp"], input=given, capture_output=True, timeout=120)
    assert b'"completionProvider"' in done.stdout, done.stderr
