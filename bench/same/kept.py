"""What a revision answered, kept in `build/same`: it is the same next time, and half of the work."""

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from bench.same.checkouts import ROOT, Answer
from bench.same.compare import Files, Side
from bench.same.pairs import Pair

FOLDER = ROOT / "build" / "same"


@dataclass(frozen=True, slots=True)
class Kept:
    """The answers of a commit by pair and commands; files, many of which are alike, by their hash."""

    commit: str
    folder: Path = FOLDER

    @classmethod
    def of(cls, revision: str) -> "Kept":
        git = ["git", "-C", str(ROOT), "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}"]
        found = subprocess.run(git, capture_output=True, text=True).stdout.strip()
        if not found:
            raise SystemExit(f"there is no revision {revision}")
        return cls(found)

    def load(self, pair: Pair, commands: Mapping[str, Sequence[str]]) -> Side | None:
        """What was kept, if this was asked before of the same plan and model."""
        path = self._path(pair, commands)
        if not path.exists():
            return None
        known = json.loads(path.read_text("utf-8"))
        files = {name: self._blob(digest).read_bytes() for name, digest in known["files"].items()}
        return Side({command: Answer(**answer) for command, answer in known["answers"].items()}, files)

    def save(self, pair: Pair, commands: Mapping[str, Sequence[str]], side: Side) -> None:
        files = {name: hashlib.sha256(content).hexdigest() for name, content in side.files.items()}
        for name, digest in files.items():
            if not self._blob(digest).exists():
                _write(self._blob(digest), side.files[name])
        answers = {command: asdict(answer) for command, answer in side.answers.items()}
        _write(self._path(pair, commands), json.dumps({"answers": answers, "files": files}).encode())

    def _path(self, pair: Pair, commands: Mapping[str, Sequence[str]]) -> Path:
        key = json.dumps([VERSIONS, *map(list, commands.items()), *_texts(pair)])
        return self.folder / self.commit / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"

    def _blob(self, digest: str) -> Path:
        return self.folder / "files" / digest[:2] / digest


VERSIONS = [platform.python_version(), version("torch")]


def _texts(pair: Pair) -> list[str]:
    """The plan with those beside it, from which it may take functions, and the model's file with those beside it."""
    beside = sorted(pair.plan.parent.glob("*.ssp")) if pair.plan.is_relative_to(ROOT) else []
    model = Path(pair.model.rpartition(":")[0])
    beside += sorted(model.parent.glob("*.py")) if model.suffix == ".py" else []
    return [path.read_text("utf-8") for path in (pair.plan, *beside)]


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.{id(content)}")
    part.write_bytes(content)
    part.replace(path)


def unpack(files: Files, folder: Path) -> None:
    """Write a compiled folder again."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
