"""Records of operators: a mapping by name, in the order of the graph, whose copies change apart."""

from copy import copy

import pytest

from ssdsl.plan.facts import Records
from ssdsl.plan.plan import Mark, OpPlan
from ssdsl.text.source import Source, Span

FIRST, SECOND = (OpPlan(ahead=Mark(n, Span(Source("", ""), 0, 0))) for n in (1, 2))


def test_only_what_something_was_said_of_is_in_it_in_the_order_of_the_graph() -> None:
    records = Records({"a": 0, "b": 1, "c": 2}, [SECOND, None, FIRST])
    assert (dict(records), len(records)) == ({"a": SECOND, "c": FIRST}, 2)
    assert records.get("b") is None
    with pytest.raises(KeyError):
        records["b"]


def test_a_copy_changes_apart() -> None:
    records = Records({"a": 0})
    other = copy(records)
    other.at[0] = FIRST
    assert (dict(records), dict(other)) == ({}, {"a": FIRST})
