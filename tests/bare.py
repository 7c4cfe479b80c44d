"""An interpreter that finds some packages with what they require, and nothing else that is installed here.

It takes the files of this environment, so a test sees what a user has who installed those packages alone, without a
second copy of torch.
"""

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement


@dataclass(frozen=True)
class Bare:
    """A virtual environment, and the folder of links with its packages."""

    python: Path
    site: Path

    def run(self, *arguments: str, cwd: Path, timeout_s: float = 240) -> "subprocess.CompletedProcess[str]":
        """The interpreter with these arguments; torchrun is asked to end, as it ends its ranks then."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        environment |= {"PYTHONPATH": str(self.site), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        command, pipe = [str(self.python), *arguments], subprocess.PIPE
        with subprocess.Popen(command, cwd=cwd, env=environment, stdout=pipe, stderr=pipe, text=True) as process:
            try:
                out, err = process.communicate(timeout=timeout_s)
                return subprocess.CompletedProcess(command, process.returncode, out, err)
            finally:
                process.terminate()


def bare(folder: Path, requirements: Iterable[str], *more: Path) -> Bare:
    """An interpreter in `folder` with those packages and with `more`, folders of packages that are not installed."""
    site = folder / "site"
    site.mkdir()
    for path in (*_closure(requirements), *more):
        if not (site / path.name).exists():  # several packages can have one folder, as NVIDIA's have
            (site / path.name).symlink_to(path)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    return Bare(folder / "venv" / "bin" / "python", site)


def _closure(requirements: Iterable[str]) -> Iterator[Path]:
    """The folders and files of packages and of all that they require, without extras."""
    wanted, known = list(map(Requirement, requirements)), set[str]()
    while wanted:
        one = wanted.pop()
        if one.name in known or (one.marker is not None and not one.marker.evaluate({"extra": ""})):
            continue
        known.add(one.name)
        found = distribution(one.name)
        wanted += map(Requirement, found.requires or ())
        for top in sorted({file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}):
            yield Path(str(found.locate_file(top)))
