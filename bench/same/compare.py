"""How far the answers of two checkouts are alike: the levels, and what a pair of answers comes to."""

import io
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from bench.same.checkouts import Answer
from bench.same.names import Names, fixed_names, same_code, same_json, same_program, same_tasks

EVALUATION = "evaluate/"  # the folder of the program that evaluates
DEARER = 1.001  # a simulated step, or a peak of memory, that is called dearer
Files = Mapping[str, bytes]
Renamed = Mapping[str, str]


class Level(IntEnum):
    """From the best to the worst."""

    BYTES = 0
    NAMES = 1
    OTHER = 2
    WORSE = 3

    @property
    def letter(self) -> str:
        return ("a", "b", "c", "worse")[self]


@dataclass(frozen=True, slots=True)
class Side:
    """What one checkout makes of a plan: its answers by command, and the files that it wrote by their names."""

    answers: Mapping[str, Answer]
    files: Files


@dataclass(frozen=True, slots=True)
class Cost:
    """A simulated step."""

    step_s: float
    peak_bytes: int

    def is_dearer_than(self, other: "Cost") -> bool:
        return self.step_s > DEARER * other.step_s or self.peak_bytes > DEARER * other.peak_bytes


@dataclass(frozen=True, slots=True)
class Found:
    """What of a pair is not equal byte for byte, and its simulated steps, old and new, on each cluster."""

    unlike: tuple[tuple[Level, str], ...] = ()
    costs: tuple[tuple[Cost, Cost], ...] = ()

    @property
    def level(self) -> Level:
        return max((level for level, _ in self.unlike), default=Level.BYTES)

    @property
    def what(self) -> str:
        """What decides the level, and how much else there is."""
        worst = [what for level, what in self.unlike if level is self.level]
        more = len(self.unlike) - len(worst)
        return "; ".join([*worst, *([f"{more} lesser differences"] if more else [])])

    def and_also(self, level: Level, what: str) -> "Found":
        """With one more difference, if it is one."""
        return self if level is Level.BYTES else Found((*self.unlike, (level, what)), self.costs)


def compared(old: Side, new: Side, renamed: Renamed) -> Found:
    """The worst of all answers and files; what refers to modules of `ssdsl` is renamed in the old ones first."""
    found = Found(costs=tuple(_costs(old, new)))
    for program in (EVALUATION, ""):
        names = Names(_fixed(old.files, program))
        before, after = (_of_program(side.files, program) for side in (old, new))
        for name, level in unlike_files(before, after, renamed, names):
            found = found.and_also(level, name)
    for command, answer in old.answers.items():
        names = Names(_fixed(old.files, ""))  # a view is consistent in itself
        found = found.and_also(*answer_level(command, answer, new.answers[command], names))
    if any(after.is_dearer_than(before) for before, after in found.costs):
        found = found.and_also(Level.WORSE, "dearer")
    return found


def _of_program(files: Files, program: str) -> Files:
    """Those of training, or of the evaluation beside it, whose names are its own."""
    return {name: text for name, text in files.items() if name.startswith(EVALUATION) is (program == EVALUATION)}


def _fixed(files: Files, program: str) -> frozenset[str]:
    table = files.get(f"{program}program.json")
    return frozenset() if table is None else fixed_names(json.loads(table))


# -- files ------------------------------------------------------------------------------------------------------------


def unlike_files(old: Files, new: Files, renamed: Renamed, names: Names) -> Iterator[tuple[str, Level]]:
    """Those that are not equal byte for byte. Where one is not, the names in equal ones count too: they have to fit."""
    if not changed_files(old, new, renamed):
        return
    moved = _moved(old, renamed)
    for name in sorted({*moved, *new}):
        level = _file_level(name, moved.get(name), new.get(name), names)
        if level is not Level.BYTES:
            yield name, level


def changed_files(old: Files, new: Files, renamed: Renamed) -> tuple[str, ...]:
    """Those that are not equal byte for byte, by their new names."""
    moved = _moved(old, renamed)
    return tuple(name for name in sorted({*moved, *new}) if moved.get(name) != new.get(name))


def _moved(files: Files, renamed: Renamed) -> Files:
    """The files with these modules' new names, where they lie then."""
    if not renamed:
        return files
    return {
        _path(name, renamed): content if name.endswith(".pt") else with_names(content.decode(), renamed).encode()
        for name, content in files.items()
    }


def _path(name: str, renamed: Renamed) -> str:
    module, dot, suffix = name.rpartition(".")
    return with_names(module.replace("/", "."), renamed).replace(".", "/") + dot + suffix


def _file_level(name: str, old: bytes | None, new: bytes | None, names: Names) -> Level:
    if old is None or new is None:
        return Level.OTHER
    if name.endswith(".pt"):
        return _tensors_level(old, new)
    if name.endswith(".py"):
        level = Level.NAMES if same_code(old.decode(), new.decode(), names) else Level.OTHER
    else:
        level = _json_level(old.decode(), new.decode(), names, same_json)
    return Level.BYTES if level is Level.NAMES and old == new else level


def with_names(text: str, renamed: Renamed) -> str:
    """A text with the new names of modules, wherever the old ones stand as words, or are imported beside their own.

    >>> with_names("from ssdsl.runtime.pulse import Pulse  # pulse", {"runtime.pulse": "runtime.heartbeat"})
    'from ssdsl.runtime.heartbeat import Pulse  # pulse'
    >>> with_names("from ..pulse import Pulse", {"runtime.pulse": "runtime.heartbeat"})
    'from ..heartbeat import Pulse'
    """
    for old, new in renamed.items():
        text = re.sub(rf"\b{re.escape(old)}\b", new, text)
        text = re.sub(rf"(from \.+){re.escape(_last_part(old))}\b", rf"\g<1>{_last_part(new)}", text)
    return text


def _last_part(module: str) -> str:
    return module.rpartition(".")[2]


def _tensors_level(old: bytes, new: bytes) -> Level:
    """Tensors are equal to the bit; so are the bytes of a file, but for what torch writes around them."""
    if old == new:
        return Level.BYTES
    import torch

    return Level.NAMES if equal_to_the_bit(*(torch.load(io.BytesIO(data)) for data in (old, new))) else Level.OTHER


def equal_to_the_bit(old: Any, new: Any) -> bool:
    """Whether two values with tensors inside are the same, NaN and the sign of zero included."""
    import torch

    match old, new:
        case torch.Tensor(), torch.Tensor():
            if (old.shape, old.dtype) != (new.shape, new.dtype):
                return False
            return torch.equal(*(t.detach().contiguous().flatten().view(torch.uint8) for t in (old, new)))
        case dict(), dict():
            return [*old] == [*new] and all(equal_to_the_bit(old[key], new[key]) for key in old)
        case (list() | tuple(), list() | tuple()):
            return len(old) == len(new) and all(map(equal_to_the_bit, old, new))
    return bool(old == new or (old != old and new != new))


# -- answers ----------------------------------------------------------------------------------------------------------


def answer_level(command: str, old: Answer, new: Answer, names: Names) -> tuple[Level, str]:
    """Two answers of one command. Refused by both in the same words they are equal; by one alone, it is a failure."""
    if new.is_crash:
        return Level.WORSE, f"{command}: {'fails in both' if old.is_crash else f'fails, {_last(new)}'}"
    if old.is_crash:
        return Level.OTHER, f"{command}: fails no more"
    if old.is_refusal != new.is_refusal:
        return Level.WORSE, f"{command}: {f'refused, {_last(new)}' if new.is_refusal else 'refused no more'}"
    if old.status != new.status:
        return Level.WORSE, f"{command}: status {new.status} for {old.status}"
    level = _said_level(command, old.out, new.out, names)
    if old.err != new.err:
        diagnostics = Level.NAMES if _lines_match(old.err, new.err, names) else Level.OTHER
        if diagnostics >= level:
            return diagnostics, f"{command}: diagnostics"
    return level, command


def _last(answer: Answer) -> str:
    """What a refusal says first, or a crash last."""
    lines = [line for line in answer.err.splitlines() if line.strip()]
    return (lines[-1 if answer.is_crash else 0] if lines else f"status {answer.status}")[:160]


def _lines_match(old: str, new: str, names: Names) -> bool:
    return len(old.splitlines()) == len(new.splitlines()) and names.match(old, new)


def _said_level(command: str, old: str, new: str, names: Names) -> Level:
    if old == new:
        return Level.BYTES
    if command == "show tasks":
        return _json_level(old, new, names, same_tasks)
    if command == "show program":
        return _json_level(old, new, names, lambda a, b, n: same_program(a["program"], b["program"], n))
    return _json_level(old, new, names, same_json)


def _json_level(old: str, new: str, names: Names, same: Callable[[Any, Any, Names], bool]) -> Level:
    """Of texts that differ; what is no JSON, such as a plan, is a text."""
    try:
        values = json.loads(old), json.loads(new)
    except ValueError:
        return Level.NAMES if names.match(old, new) else Level.OTHER
    return Level.NAMES if same(*values, names) else Level.OTHER


def _costs(old: Side, new: Side) -> Iterator[tuple[Cost, Cost]]:
    """Of each simulation that both give."""
    for command in (c for c in old.answers if c.startswith("simulate")):
        if (before := _cost(old.answers[command])) and (after := _cost(new.answers[command])):
            yield before, after


def _cost(answer: Answer) -> Cost | None:
    if not answer.out:
        return None
    report = json.loads(answer.out)
    return Cost(report["step_s"], report["peak_bytes"])
