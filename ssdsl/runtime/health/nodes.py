"""Work of ranks on several nodes without a shared disk, besides training: comparing programs, collecting reports."""

import contextlib
import hashlib
import json
import os
from pathlib import Path

from .torchrun_store import StatusStore

REPORT = "rank{rank}.json"
PART = 2**20  # letters of a report in one note; torch's store ends the connection of who sends it 8 MiB or more


def nodes() -> int:
    """The number of nodes on which torchrun has started ranks; 1 if unknown."""
    return int(os.environ.get("GROUP_WORLD_SIZE", "1"))


def check_alike(store: StatusStore, folder: Path) -> None:
    """Raises SystemExit if this node's program differs from that of other nodes, because ranks would then wait for each
    other for ever.

    The program's table and code are compared; weights may be large and are not.
    """
    if nodes() == 1:
        return
    digest = hashlib.sha256()
    for path in [*sorted(folder.glob("role_*.py")), folder / "program.json"]:
        digest.update(path.read_bytes())
    if store.set_if_absent("program", digest.hexdigest()) != digest.hexdigest():
        raise SystemExit(
            "the nodes have different programs: compile the same plan for the same model, with the same options and "
            "the same version of ssdsl, on each node, or start all of them from one folder on a shared disk"
        )


def hand_in(store: StatusStore, out: Path, rank: int) -> None:
    """Sends this rank's report to the first node; it has arrived when this returns."""
    path = out / REPORT.format(rank=rank)
    if nodes() > 1 and path.exists():
        text = path.read_text()
        starts = range(0, len(text), PART)
        for start in starts:
            store.set_if_absent(f"{path.name} {start}", text[start : start + PART])
        store.set_if_absent(path.name, json.dumps([*starts]))


def collect(store: StatusStore, out: Path, ranks: int) -> None:
    """Writes, on the first rank, the reports that ranks of other nodes have sent."""
    if nodes() == 1 or os.environ.get("RANK") != "0":
        return
    for path in (out / REPORT.format(rank=rank) for rank in range(ranks)):
        if not path.exists():
            with contextlib.suppress(RuntimeError):
                if (starts := store.get(path.name)) is not None:
                    path.write_text("".join(store.get(f"{path.name} {start}") or "" for start in json.loads(starts)))
