"""The progress bar of a run, fed by the log to which rank 0 appends a line per step."""

import json
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar


class Progress:
    """Shows the steps done and the last loss on a terminal, and nothing elsewhere."""

    def __init__(self, path: Path, steps: int, console: Console | None) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        hidden = console is None or not console.is_terminal
        self.bar = Bar(*columns, console=console, transient=True, disable=hidden)
        self.task = self.bar.add_task("starting", total=steps)
        self.path = path
        self.read = 0

    def __enter__(self) -> "Progress":
        self.bar.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.bar.stop()

    def update(self) -> None:
        """Reads the lines written since the last call; an incomplete line is left for the next."""
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
