"""A user's file as a module."""

import os
from pathlib import Path

from ssdsl.runtime.program.user_module import import_file


def test_a_file_counts_as_it_is_written_now(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("sys.path", [])
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    file = tmp_path / "own.py"
    for number in (2, 3):  # of equal size, in the same second
        file.write_text(f"number = {number}\n")
        os.utime(file, (1e9, 1e9))
        assert import_file(file, "own_of_this_test").number == number
