"""Why a run failed: which rank was first, and what it said."""

import json
import signal
from pathlib import Path

from ssdsl.run.errors import LaunchFailed, RankFailed
from ssdsl.text.diagnostic import Diagnostic

LINES = 25
LOGS = "`--out DIR` keeps the output of every rank in DIR/logs"
MEMORY = "the machine may have run out of memory: take a smaller model, or cut it into more parts"


def failure(out: Path, status: int) -> Diagnostic:
    """The diagnostic of a failed run, from the files in `out` and torchrun's exit status.

    A rank that was killed, or ended without writing its error, comes before those that did: their error is mostly that
    it went away. Of these the earliest is taken.
    """
    errors = sorted(out.glob("rank*.err"), key=lambda path: path.stat().st_mtime_ns)
    said = {int(path.stem.removeprefix("rank")): path for path in errors}
    exits = _exits(out)
    silent = [rank for rank, code in exits.items() if rank not in said and code != -signal.SIGTERM]
    if silent:
        rank = min(silent, key=lambda r: (exits[r] > 0, r))
        return RankFailed(None, rank, _ending(exits[rank]), _log(out, rank), _change(exits[rank]))
    if said:
        rank = next(iter(said))
        return RankFailed(None, rank, "failed", _tail(said[rank]), LOGS)
    return LaunchFailed(None, status, _tail(out / "torchrun.log"), str(out / "torchrun.log"))


def _exits(out: Path) -> dict[int, int]:
    """The exit codes of the ranks that torchrun saw fail; negative for a signal."""
    try:
        failures = json.loads((out / "failures.json").read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return {f["rank"]: f["exitcode"] for f in failures}


def _ending(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit status {code}"


def _change(code: int) -> str:
    return MEMORY if code == -signal.SIGKILL else LOGS


def _log(out: Path, rank: int) -> str:
    found = sorted(out.glob(f"logs/*/attempt_*/{rank}/stderr.log"))
    return (_tail(found[-1]) if found else "") or "it said nothing"


def _tail(path: Path) -> str:
    """The last lines of a file."""
    try:
        lines = path.read_text("utf-8", "replace").strip().splitlines()
    except OSError:
        return ""
    return "\n".join(lines[-LINES:])
