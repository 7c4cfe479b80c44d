"""Builds the sdist and the wheel, and tests what a user would install: `python tests/release/release.py`.

    dist/                          the sdist, and the wheel that is built from it
    build/release/newest/          a venv with torch and the wheel: the folder `smoke` passes there
    build/release/lowest/          the same with the lowest version of each dependency; then `extras`, with those

The wheel that is built from this tree has to be the same. Tests are those of the sdist, and run outside the tree.
Needs the standard library alone. What a step prints is shown if it fails.
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import venv
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from email import message_from_bytes
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DIST, WORK = ROOT / "dist", ROOT / "build" / "release"
PYTEST = "pytest"  # its lowest version is no promise to users
ASKED = re.compile(r"(?P<name>[\w.-]+).*?>=(?P<lowest>[\w.]+)")


class Failed(Exception):
    """A step ended badly; the message has what it printed."""


def call(command: Sequence[str | Path], cwd: Path = ROOT, **more: str) -> str:
    """What a command prints; raises Failed. Python writes what it compiles, which many short commands read again."""
    here = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=here | more, capture_output=True, text=True)
    if done.returncode:
        raise Failed(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def fresh(name: str, *packages: str) -> Path:
    """The Python of a new venv with these packages."""
    folder = WORK / name
    venv.create(folder, clear=True, with_pip=True)
    python = folder / "bin" / "python"
    install(python, *packages)
    return python


def install(python: Path, *packages: str) -> None:
    call([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile", *packages])


def built() -> Path:
    """The wheel of the sdist, in `dist` beside it. Raises Failed if the tree gives another one."""
    shutil.rmtree(DIST, ignore_errors=True)
    python = fresh("build", "build>=1.2,<2", "twine>=6,<8")
    build = [python, "-m", "build", "--quiet"]
    call([*build, "--outdir", DIST])
    call([*build, "--wheel", "--outdir", WORK / "from-tree"])
    call([python, "-m", "twine", "check", "--strict", *DIST.iterdir()])
    (wheel,), (other,) = DIST.glob("*.whl"), (WORK / "from-tree").glob("*.whl")
    if digests(wheel) != digests(other):
        differ = sorted({name for name, _ in digests(wheel) ^ digests(other)})
        raise Failed(f"the sdist gives another wheel than the tree:\n{chr(10).join(differ)}")
    return wheel


def digests(wheel: Path) -> set[tuple[str, str]]:
    """The files of a wheel, with their contents' digests."""
    with zipfile.ZipFile(wheel) as archive:
        return {(name, hashlib.sha256(archive.read(name)).hexdigest()) for name in archive.namelist()}


def lowest(wheel: Path) -> list[str]:
    """The lowest version of each dependency and of the extras for users, as pip's constraints."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        asked = message_from_bytes(archive.read(name)).get_all("Requires-Dist", [])
    extras = [line for line in asked if "extra ==" not in line or re.search("'(models|lsp)'", line)]
    return ["{name}=={lowest}".format(**ASKED.match(line).groupdict()) for line in extras]  # type: ignore[union-attr]


def tested(python: Path, folder: str) -> str:
    """pytest's last line for a folder of the sdist's tests."""
    tests = WORK / "tests" / python.parents[1].name
    (sdist,) = DIST.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tests, filter="data")
    (at,) = tests.glob("*/tests/release")
    shutil.move(at / folder, tests / folder)  # away from the sources, which would be imported
    pytest = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", ".", folder]
    return call(pytest, cwd=tests, SSDSL_DIST=str(DIST)).strip().splitlines()[-1]


def newest_passes(wheel: Path, torch: str) -> str:
    python = fresh("newest", torch)
    install(python, str(wheel), PYTEST)
    return f"{torch}, the newest of the rest: {tested(python, 'smoke')}"


def lowest_passes(wheel: Path) -> str:
    constraints = WORK / "lowest.txt"
    constraints.write_text("\n".join(lowest(wheel)))
    python = fresh("lowest", str(wheel), PYTEST, "--constraint", str(constraints))
    plain = tested(python, "smoke")
    install(python, f"{wheel}[models,lsp]", "--constraint", str(constraints))
    return f"the lowest of all: {plain}; with [models,lsp]: {tested(python, 'extras')}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--torch", default="torch", help="what pip installs for the newest, as torch==2.13.0")
    torch, started = parser.parse_args().torch, time.monotonic()
    shutil.rmtree(WORK, ignore_errors=True)
    try:
        wheel = built()
        with ThreadPoolExecutor() as pool:
            for passes in [pool.submit(newest_passes, wheel, torch), pool.submit(lowest_passes, wheel)]:
                print(f"release, {passes.result()}", flush=True)
    except Failed as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    print(
        f"release: {', '.join(sorted(path.name for path in DIST.iterdir()))}; took {time.monotonic() - started:.0f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
