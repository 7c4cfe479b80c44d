"""Rows of operators as text, to be pasted into a model's file."""

from collections.abc import Iterator, Sequence

from ssdsl.discover.discover import Discovered

SEVERAL = "its calls differ: write `dims` as a function of the call, or keep what holds for all"


def rows_text(found: Sequence[Discovered]) -> str:
    """The list `OPS`, with a row for each operator; comments say why one is whole, and where its calls differ."""
    lines = [line for name in dict.fromkeys(one.name for one in found) for line in _rows(found, name)]
    return "\n".join(["import ssdsl", "", "OPS = [", *(f"    {line}" for line in lines), "]"])


def _rows(found: Sequence[Discovered], name: str) -> Iterator[str]:
    """The row of an operator, behind comments; if its calls differ, the other rows are comments."""
    rows = {row_text(one): one for one in found if one.name == name}
    for number, (row, one) in enumerate(rows.items()):
        if number == 1:
            yield f"# {SEVERAL}"
        if one.rule.why_whole:
            yield f"# {one.rule.why_whole}"
        yield f"# {row}" if number else row


def row_text(one: Discovered) -> str:
    """The row of an operator as Python.

    >>> from ssdsl.discover.experiment import FoundRule
    >>> row_text(Discovered("mylib::scale", None, "mylib", FoundRule("a b, b -> a b", ("x",), (True,))))
    'ssdsl.Op("mylib::scale", "a b, b -> a b", linear_in=("x",), module="mylib"),'
    """
    sets = [f'"{words}"' for words in one.rule.linear_in]
    words = {
        "linear_in": f"({', '.join(sets)}{',' if len(sets) == 1 else ''})" if sets else "",
        "contraction": "True" if one.rule.contraction else "",
        "stops_gradient": "" if any(one.rule.flows) else "True",
        "mean": f'"{one.mean}"' if one.mean else "",
        "module": f'"{one.module}"' if one.module else "",
    }
    rest = "".join(f", {word}={value}" for word, value in words.items() if value)
    return f'ssdsl.Op("{one.name}", "{one.rule.signature}"{rest}),'
