"""The JSON of a file of costs (docs/profiles.md) as types: msgspec checks a file against them, and writes them.

    {"unit": "ms", "TF": 18.5, "TB": 18.1, "TW": 9.3, "Tcomm": 0.6, "tasks": {"block0.fwd": 17.9}}

Of a profile the times are seconds by key, and pairs [size, seconds] if they grow.
"""

import re
from functools import reduce
from operator import getitem
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ssdsl.record import Record, field, field_names
from ssdsl.simulate.profile.measured import UNITS, Times
from ssdsl.simulate.profile.profile import GROWING, PHASES, Curve, Profile, ProfiledMachine

T = TypeVar("T")
Seconds = Annotated[float, Meta(ge=0)]
Table = dict[str, Seconds]
Points = Annotated[list[tuple[Annotated[int, Meta(ge=0)], Seconds]], Meta(min_length=1)]
Place = tuple[str | int, ...]  # the keys and positions that lead to a value in a JSON document


def _one_of(names: tuple[str, ...]) -> str:
    """The pattern of these names."""
    return f"^({'|'.join(names)})$"


# -- the types of a file -----------------------------------------------------------------------------------------------


OfPhases = dict[Annotated[str, Meta(pattern=_one_of(PHASES))], Seconds]


class ProfileJson(Record):
    """A profile. `network` has keys like `all_reduce among 2`. In version 1 the times are those of ranks that share
    cores, where these are fewer. `calls` are those of a trace."""

    version: Literal[1, 2]
    machine: ProfiledMachine
    sources: tuple[str, ...] = ()
    step: Seconds = 0.0
    operators: dict[str, OfPhases] = field(default_factory=dict)
    network: dict[Annotated[str, Meta(pattern=r"^.+ among \d+$")], Points] = field(default_factory=dict)
    growing: dict[Annotated[str, Meta(pattern=_one_of(GROWING))], Points] = field(default_factory=dict)
    calls: dict[str, OfPhases] | UnsetType = UNSET
    partial: bool | UnsetType = UNSET

    @classmethod
    def of(cls, profile: Profile) -> "ProfileJson":
        """The JSON of a profile."""
        return cls(
            2,
            profile.machine,
            profile.sources,
            profile.step_s,
            {words: dict(times) for words, times in sorted(profile.operators.items())},
            {f"{kind} among {ranks}": [*c.points] for (kind, ranks), c in sorted(profile.network.items())},
            {name: [*profile.growing[name].points] for name in GROWING if name in profile.growing},
            {words: dict(times) for words, times in sorted(profile.calls.items())} or UNSET,
            profile.partial or UNSET,
        )

    def profile(self) -> Profile:
        """The profile; times of version 1 are divided by the number of ranks that shared a core."""
        named = (key.partition(" among ") for key in self.network)
        network = {(k, int(n)): Curve.of(p) for (k, _, n), p in zip(named, self.network.values(), strict=True)}
        growing = {name: Curve.of(points) for name, points in self.growing.items()}
        calls = {} if self.calls is UNSET else self.calls
        profile = Profile(
            self.machine, self.operators, network, growing, self.step, self.sources, calls, self.partial is True
        )
        return profile.faster(self.machine.sharing) if self.version == 1 else profile


class CostsJson(Record, forbid_unknown_fields=True):
    """A file of costs. All times but those of the profile are in the `unit`."""

    unit: Literal["s", "ms", "us"] = "s"
    recorded: str | None = None
    program: str | None = None
    forward: Seconds = field(default=0.0, name="TF")
    dgrad: Seconds = field(default=0.0, name="TB")
    wgrad: Seconds = field(default=0.0, name="TW")
    transfer: Seconds = field(default=0.0, name="Tcomm")
    tasks: Table = field(default_factory=dict)
    transfers: Table = field(default_factory=dict)
    reduce: Table = field(default_factory=dict)
    optimizer: Table = field(default_factory=dict)
    profile: ProfileJson | None = None

    @classmethod
    def of(cls, times: Times, **said: Any) -> "CostsJson":
        """The JSON of times, in milliseconds."""
        return cls("ms", **said, **_scaled(times, 1e3))

    def times(self) -> Times:
        """The times in seconds."""
        return Times(**_scaled(self, UNITS[self.unit]))


KEYS = [f.encode_name for f in msgspec.structs.fields(CostsJson)]


def _scaled(times: Times | CostsJson, factor: float) -> dict[str, Any]:
    """Each of `Times`, multiplied by a factor."""
    values = {name: getattr(times, name) for name in field_names(Times)}
    return {
        name: {key: factor * t for key, t in value.items()} if isinstance(value, dict) else factor * value
        for name, value in values.items()
    }


# -- reading and writing -----------------------------------------------------------------------------------------------


class MisfitError(ValueError):
    """JSON that does not fit a type: `place` is the path of the wrong value, `reason` says what is wrong with it."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(f"{place} {reason}")
        self.place, self.reason = place, reason


def encoded(value: Record | dict[str, Record]) -> str:
    """The JSON of a value, without fields that are None."""
    fields = {key: v for key, v in msgspec.to_builtins(value).items() if v is not None}
    return msgspec.json.format(msgspec.json.encode(fields), indent=1).decode() + "\n"


def decoded(text: bytes, kind: type[T]) -> T:
    """The value of this type in a JSON text. Raises MisfitError, or ValueError if the text is not JSON.

    >>> decoded(b'{"tasks": {"block0.fwd": null}}', CostsJson)
    Traceback (most recent call last):
    ssdsl.simulate.profile.costs_json.MisfitError: tasks.block0.fwd expected `float`, got `null`
    """
    try:
        return msgspec.json.decode(text.decode("utf-8"), type=kind)
    except msgspec.ValidationError as error:
        reason, path = _told(error)
        place = _place(path, msgspec.json.decode(text), kind)
        raise MisfitError(".".join(map(str, place)), reason[0].lower() + reason[1:]) from None
    except msgspec.DecodeError as error:
        raise ValueError(str(error).partition(" - at")[0]) from None


def _told(error: Exception) -> tuple[str, str]:
    """The reason of msgspec's error, and the path that it names: `.tasks[...]`, also for a key of that table."""
    reason, _, where = str(error).partition(" - at `")
    return reason, where.removeprefix("key` in `").strip("$`") + ("[...]" if where.startswith("key`") else "")


def _place(path: str, whole: Any, kind: type) -> Place:
    """The keys of a path. Where it has `[...]`, for some key of a table, that is the first one without which the rest
    of the table would fit."""
    place: Place = ()
    for name, position in re.findall(r"\.(\w+)|\[(\d+|\.\.\.)\]", path):
        if position != "...":
            place = (*place, name or int(position))
            continue
        table = reduce(getitem, place, whole)
        wrong = (key for key in table if not _fits(_with(whole, place, {key: table[key]}), kind))
        place = (*place, next(wrong))
    return place


def _fits(value: Any, kind: type) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


def _with(value: Any, place: Place, new: Any) -> Any:
    """The value with another one in one place."""
    if not place:
        return new
    key, *rest = place
    copy = value.copy()
    copy[key] = _with(value[key], tuple(rest), new)
    return copy
