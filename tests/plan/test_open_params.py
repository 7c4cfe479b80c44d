"""`param T = 2 in [1, 2, 4]`: what is tried where nobody says otherwise."""

import pytest

from ssdsl.lang.format import format_script
from ssdsl.lang.parse import parse
from ssdsl.plan.declarations import open_settings, params
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Source


def settings(text: str, **given: int) -> list[dict[str, int]]:
    return list(open_settings(parse(Source("a.ssp", text)), given))


def test_every_number_with_every_other() -> None:
    text = 'param T = 2 in [1, 2] "width"\nparam D = 3\nparam M = 8 in [4, 8]\n'
    assert settings(text) == [{"T": t, "M": m} for t in (1, 2) for m in (4, 8)]


def test_numbers_that_depend_on_earlier_params() -> None:
    assert settings("param S = 2 in [1, 2]\nparam M = 2 * S in [S, 2 * S]\n") == [
        {"S": 1, "M": 1},
        {"S": 1, "M": 2},
        {"S": 2, "M": 2},
        {"S": 2, "M": 4},
    ]


def test_what_is_set_is_not_tried_and_may_be_any_number() -> None:
    text = "param S = 2 in 1..4\nparam M = 4 in [4, 8]\n"
    assert settings(text, S=7) == [{"S": 7, "M": 4}, {"S": 7, "M": 8}]
    assert settings("param S = 2\n") == []


def test_each_number_once() -> None:
    (found,) = params(parse(Source("a.ssp", 'param S = 1 in [1, min(1, 2), 2] "stages"\n')))
    assert (found.default, found.domain, found.help) == (1, (1, 2), "stages")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("param S = 3 in [1, 2]\n", "E0282"),
        ("param S = 1 in []\n", "E0210"),
        ("param S = 1 in 1\n", "E0210"),
        ("param S = 1 in [1, 0.5]\n", "E0210"),
        ("param S = 1 in [model]\n", "E0226"),
        ("param S = 1 in\n", "E0111"),
    ],
)
def test_mistakes(text: str, code: str) -> None:
    with pytest.raises(PlanError) as raised:
        params(parse(Source("a.ssp", text)))
    assert raised.value.diagnostics[0].code == code


def test_it_is_formatted() -> None:
    source = Source("a.ssp", 'param   S=2   in [1,2 , 4*2] "stages"\n')
    assert format_script(parse(source), source) == 'param S = 2 in [1, 2, 4 * 2] "stages"\n'


def test_an_empty_list_is_called_empty() -> None:
    with pytest.raises(PlanError, match="expected a list of whole numbers, found an empty list"):
        params(parse(Source("a.ssp", "param S = 1 in []\n")))
