"""The progress bars of a run: of steps, fed by the log to which rank 0 appends a line per step; and of compiled runs,
fed by the statuses of the ranks."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

COMPILES = re.compile(r"(?P<what>compiling `\w+`), (?P<number>\d+) of (?P<all>\d+)")  # what a rank does


class Progress:
    """Shows on a terminal the steps done with the last loss, and while torch compiles how many runs of operators are
    left. Elsewhere a line says that it compiles."""

    def __init__(self, path: Path, steps: int, console: Console | None) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        hidden = console is None or not console.is_terminal
        self.bar = Bar(*columns, console=console, transient=True, disable=hidden)
        self.task = self.bar.add_task("starting", total=steps)
        self.path, self.console = path, console
        self.read = 0
        self.compiling: TaskID | None = None
        self.has_said = False

    def __enter__(self) -> "Progress":
        self.bar.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.bar.stop()

    def update(self, states: Iterable[Mapping[str, Any]] = ()) -> None:
        """Reads the lines written since the last call; an incomplete line is left for the next. `states` are the
        statuses of the ranks."""
        self._compile([found for s in states if (found := COMPILES.match(str(s["doing"]))) is not None])
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self.read)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self.read += len(whole)
        for line in whole.splitlines():
            try:
                step = json.loads(line)
            except ValueError:  # a rank was killed while it wrote
                continue
            self.bar.update(self.task, completed=step["step"] + 1, description=f"training, {described(step)}")

    def _compile(self, found: Sequence[re.Match[str]]) -> None:
        """Shows the run that the rank compiles which has most before it."""
        if not found:
            if self.compiling is not None:
                self.bar.remove_task(self.compiling)
                self.compiling = None
            return
        last = min(found, key=lambda m: int(m["number"]) - int(m["all"]))
        number, every = int(last["number"]), int(last["all"])
        if not self.has_said and self.bar.disable and self.console is not None:
            self.console.print(f"compiling {every} runs of operators", markup=False, highlight=False)
        self.has_said = True
        if self.compiling is None:
            self.compiling = self.bar.add_task("", total=every)
        self.bar.update(self.compiling, completed=number - 1, total=every, description=last["what"])


def described(step: dict[str, Any]) -> str:
    """A step's line of the log as a text.

    >>> described({"step": 3, "loss": 2.5, "lr": 3e-4, "tokens_per_s": 12345.6})
    'loss 2.5000, lr 0.0003, 12.3k tokens/s'
    """
    words = [f"loss {step['loss']:.4f}"]
    if "lr" in step:
        words.append(f"lr {step['lr']:.3g}")
    for unit in ("tokens", "samples"):
        if (rate := step.get(f"{unit}_per_s")) is not None:
            return ", ".join([*words, f"{_short(rate)} {unit}/s"])
    return ", ".join(words)


def _short(number: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.1f}{letter}"
    return f"{number:.1f}"
