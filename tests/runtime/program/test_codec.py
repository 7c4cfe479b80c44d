"""Dataclasses as JSON: what is written is read again, by the types of the fields."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pytest

from ssdsl.runtime.errors import EngineError
from ssdsl.runtime.program.codec import decoded, from_json, to_json, to_json_lines
from ssdsl.runtime.program.table import TransferEntry, read_table

GOLDEN = Path(__file__).parent.parent.parent / "codegen" / "goldens" / "program.json.txt"


class Cut(NamedTuple):
    axis: str
    parts: int | tuple[int, ...]


@dataclass(frozen=True)
class Square:
    side: float
    name: str | None


@dataclass(frozen=True)
class Circle:
    radius: float
    note: str | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class Drawing:
    shapes: tuple[Square | Circle, ...]
    cuts: dict[int, Cut] = field(default_factory=dict)


DRAWING = Drawing((Square(2.0, None), Circle(1.5)), {3: Cut("tp", 2), 5: Cut("dp", (1, 2))})
TEXT = '{"shapes": [{"side": 2.0, "name": null}, {"radius": 1.5}], "cuts": {"3": ["tp", 2], "5": ["dp", [1, 2]]}}'


def test_what_is_written_is_read_again() -> None:
    assert to_json(DRAWING) == TEXT
    assert from_json(Drawing, TEXT) == DRAWING


def test_other_keys_are_ignored_and_defaults_may_be_missing() -> None:
    assert decoded(Drawing, {"shapes": [{"radius": 1, "color": "red"}]}) == Drawing((Circle(1.0),))


def test_a_list_may_stand_for_fields_in_order_or_for_pairs() -> None:
    assert decoded(Square, [1, "a"]) == Square(1.0, "a")
    assert decoded(dict[int, str], [[4, "a"]]) == {4: "a"}


@pytest.mark.parametrize(
    "value", [{}, {"shapes": 3}, {"shapes": [{"edge": 1}]}, {"shapes": [{"radius": "round"}]}, [[], {}, {}], None]
)
def test_what_is_not_of_the_type(value: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        decoded(Drawing, value)


def test_a_program_is_written_as_it_was_read() -> None:
    text = GOLDEN.read_text()
    table = read_table(text)
    assert to_json_lines(table) + "\n" == text
    assert {type(message) for message in table.messages} == {TransferEntry}


def test_a_program_of_another_version() -> None:
    with pytest.raises(EngineError, match="the program is of version 1, and this runtime runs version"):
        read_table(json.dumps({"model": "m"}))
