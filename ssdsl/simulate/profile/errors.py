"""Diagnostics of files of costs."""

from collections.abc import Sequence

from ssdsl.text.diagnostic import Diagnostic

SHOWN = 5


class CostsUnreadable(Diagnostic):
    """The file of costs is not a JSON object as `ssdsl run PLAN --profile FILE` writes it.

    It has the times of a stage for one micro-batch (`TF` forward, `TB` and `TW` the two halves of backward), of a
    transfer (`Tcomm`), or of single tasks (`tasks`: `"block0.fwd": 1.5`), in a `unit`: `s`, `ms` or `us`.
    """

    code = "E0651"
    title = "`{file}` is no file of costs: {reason}"
    help = "{hint}"
    file: str
    reason: str
    hint: str


def _listed(names: Sequence[str], indent: str = "  ") -> str:
    """The first names, one a line, and the number of the others."""
    more = [f"{indent}and {len(names) - SHOWN} more"] if len(names) > SHOWN else []
    return "\n".join([*(f"{indent}{name}" for name in names[:SHOWN]), *more])


class ProfileLacks(Diagnostic):
    """A profile has the times of operators by their call, local shapes and types, so it predicts any plan whose
    operators it has, for the same model or another one. This plan has parts of operators without a time in the profile,
    and the simulator does not guess: an operator half as large is not twice as fast.

    `ssdsl profile` measures what is missing, and adds it to the file; docs/profiles.md says what a profile holds.
    """

    code = "E0652"
    title = "the profile `{file}` lacks {count} of the times that this plan needs"
    note = "it has no time of\n{listed}\n{origin}"
    help = "record them: `{command}`"
    file: str
    lacking: tuple[str, ...]
    sources: tuple[str, ...]
    command: str

    @classmethod
    def of(cls, file: str, lacking: Sequence[str], sources: Sequence[str], command: str) -> "ProfileLacks":
        """The diagnostic for a profile that lacks these times."""
        return cls(None, file, tuple(lacking), tuple(sources), command)

    @property
    def count(self) -> int:
        return len(self.lacking)

    @property
    def listed(self) -> str:
        return _listed(self.lacking)

    @property
    def origin(self) -> str:
        return f"it was recorded from\n{_listed(self.sources)}" if self.sources else ""


class TasksMisfit(Diagnostic):
    """The file has times of single tasks (`"block0.fwd": 1.5`), and these belong to one program: another plan has other
    tasks, and tasks of the same name that do something else. A file that names its program, as `ssdsl run --profile`
    writes it, is used for that program only; a file that does not has to name exactly the tasks of the program.

    A profile (`ssdsl profile`) has times of operators instead, and predicts other plans. Times of a stage (`TF`, `TB`,
    `TW`) are for any plan.
    """

    code = "E0653"
    title = "`{file}` has the times of another program's tasks"
    note = "{origin}\n{lacks}\n{has}"
    help = "record the operators that this plan needs: `{command}`"
    file: str
    recorded: str | None
    lacking: tuple[str, ...]
    foreign: tuple[str, ...]
    command: str

    @classmethod
    def of(
        cls, file: str, recorded: str | None, lacking: Sequence[str], foreign: Sequence[str], command: str
    ) -> "TasksMisfit":
        """The diagnostic for a file that lacks tasks of the program, or has tasks that the program does not have."""
        return cls(None, file, recorded, tuple(lacking), tuple(foreign), command)

    @property
    def origin(self) -> str:
        return f"it was recorded from {self.recorded}" if self.recorded else ""

    @property
    def lacks(self) -> str:
        return f"it has no time of\n{_listed(self.lacking)}" if self.lacking else ""

    @property
    def has(self) -> str:
        return f"this program has no task\n{_listed(self.foreign)}" if self.foreign else ""


class MachinesMixed(Diagnostic):
    """`ssdsl profile` adds to an existing file. Times of two machines, or of two versions of torch, do not belong in
    one profile."""

    code = "E0655"
    title = "the profile `{file}` is for another {fact}: {known}, and here it is {found}"
    help = "give `--out` another file"
    file: str
    fact: str
    known: str
    found: str


class CostsArePartial(Diagnostic):
    """A search compares settings, and each has parts of other sizes. With a partial profile, such as that of a trace,
    those of some settings would be measured and those of others estimated by the rates of the cluster, so that the
    search would compare a machine with a description of one.

    `ssdsl profile` records the operators of several settings. `ssdsl simulate --costs` takes a partial profile, and
    says how much of a step was measured.
    """

    code = "E0656"
    title = "the profile `{file}` is partial, and a search compares settings of which it has other shares"
    help = "search without --costs, or record plans of several settings: `ssdsl profile PLAN,T=1 PLAN,T=2 --out FILE`"
    file: str
