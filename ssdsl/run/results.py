"""The results of a run, read from the files of its ranks."""

from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from ssdsl.run.errors import ResultMissing
from ssdsl.runtime.program.codec import from_json
from ssdsl.text.diagnostic import PlanError


@dataclass(frozen=True, slots=True)
class CollectiveCalls:
    """The calls of one collective on one rank and their bytes, over all steps."""

    calls: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Recorded:
    """The time of a task as the program writes it (`F3[0]`), of `reduce` or `optimizer`; seconds of one clock.

    `waited_s` is the part spent waiting for other ranks, `computed_s` the time that the rank's thread had a core.
    """

    name: str
    start_s: float
    end_s: float
    waited_s: float
    computed_s: float


@dataclass(frozen=True, slots=True)
class Spent:
    """The seconds of one place in a step, for each task or step, by `runtime/profile/operator_clock.py`."""

    what: str
    number: int
    layer: str
    line: int
    times_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class CompiledRuns:
    """The numbers of runs of operators that torch has compiled, and has loaded from its cache, in so many seconds; and
    of those that run operator by operator, why."""

    compiled: int = 0
    loaded: int = 0
    took_s: float = 0.0
    refused: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RankResult:
    """One rank's measurements; `losses` is empty where the rank does not compute the loss.

    `base_bytes` is the process's memory before training. For a recorded run, `tensor_bytes` is the most that tensors
    took at once, with workspaces of kernels (0 with fewer than three steps), `recorded` has one list a step, and
    `transfers_s` the time of each transfer alone. `clocked` maps the steps with an operator clock to their times, and
    `network` has seconds by (kind, ranks, bytes), in a process with so many `threads`. `stopped`: a signal asked the
    run to stop before its last step. `runs` are its compiled runs.
    """

    rank: int
    role: str
    losses: tuple[float, ...]
    step_s: tuple[float, ...]
    peak_bytes: int
    comm: dict[str, CollectiveCalls]
    base_bytes: int = 0
    tensor_bytes: int = 0
    recorded: tuple[tuple[Recorded, ...], ...] = ()
    transfers_s: dict[str, float] = field(default_factory=dict)
    first: int = 0
    evaluated: dict[int, float] = field(default_factory=dict)
    clocked: dict[int, tuple[Spent, ...]] = field(default_factory=dict)
    network: tuple[tuple[str, int, int, float], ...] = ()
    threads: int = 1
    stopped: bool = False
    runs: CompiledRuns = field(default_factory=CompiledRuns)


@dataclass(frozen=True, slots=True)
class RunResult:
    """A finished run of `steps` steps, without those before a resumed run; `out` is the folder with the files of every
    rank."""

    steps: int
    ranks: tuple[RankResult, ...]
    out: Path

    @property
    def losses(self) -> tuple[float, ...]:
        return next((r.losses for r in self.ranks if r.losses), ())

    @property
    def first(self) -> int:
        """The number of the first step; not 0 if the run continued a checkpoint."""
        return self.ranks[0].first

    @property
    def is_stopped(self) -> bool:
        """Whether a signal asked the run to stop before its last step."""
        return self.ranks[0].stopped

    @property
    def evaluated(self) -> dict[int, float]:
        """The mean loss of the evaluation after some steps."""
        return self.ranks[0].evaluated

    @property
    def step_s(self) -> tuple[float, ...]:
        """The time of each step on the slowest rank."""
        return tuple(max(times) for times in zip(*(r.step_s for r in self.ranks), strict=True))

    @property
    def median_step_s(self) -> float:
        """The median step time without the first step, in which memory is allocated and connections are made."""
        return median(self.step_s[1:] or self.step_s or (0.0,))


def read_result(out: Path, steps: int, ranks: range) -> RunResult:
    """The results of some ranks; raises PlanError if one is missing or malformed."""
    found = tuple(_read_rank(out / f"rank{rank}.json", rank) for rank in ranks)
    trained = max(0, steps - max((rank.first for rank in found), default=0))
    return RunResult(len(found[0].step_s) if found and found[0].stopped else trained, found, out)


def _read_rank(path: Path, rank: int) -> RankResult:
    try:
        return from_json(RankResult, path.read_text("utf-8"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PlanError(ResultMissing(None, rank, path.name, f"{type(error).__name__}: {error}")) from error
