"""Checks that what a model looks up by numbers of its own, such as positions, is there.

Torch computes such numbers at capture without looking at the table, so a sequence that is longer than a table of
positions would fail in the middle of a step.
"""

from collections.abc import Iterator

import torch

from ssdsl.model.capture.call import CapturedCall
from ssdsl.model.capture.capture import Capture
from ssdsl.model.rewrite.constants import known_numbers
from ssdsl.text.diagnostic import Diagnostic, PlanError

aten = torch.ops.aten


class RowMissing(Diagnostic):
    """The forward looks up a row of a table that the table does not have, by a number that it computes itself.

    A table of positions has a row for each position, so a sequence may have as many positions as it has rows. The
    batch of this capture has more. That is the example batch, or one of another length that a training script gave.
    """

    code = "E0426"
    title = "`{kind}` in {where} looks up row {row} of `{table}`, which has {rows} rows"
    note = "{source}"
    help = "give shorter sequences: at most {rows} if the rows are positions; or make the table larger"
    kind: str
    where: str
    row: int
    table: str
    rows: int
    source: str


def check_lookups(capture: Capture) -> None:
    """Raises PlanError for the first call that looks up a row which its table does not have."""
    makers = capture.makers()
    for call in capture.calls:
        for table, index, dim in _lookups(call):
            numbers, size = known_numbers(index, makers, capture), capture.tensors[table].shape[dim]
            if numbers is None or not numbers.numel() or numbers.dtype == torch.bool:
                continue
            most, least = int(numbers.max()), int(numbers.min())
            if most >= size or least < -size:
                where = f"module `{call.path}`" if call.path else "the model"
                row = most if most >= size else least
                raise PlanError(RowMissing(None, call.kind, where, row, _named(table, capture), size, call.source))


def _lookups(call: CapturedCall) -> Iterator[tuple[str, str, int]]:
    """The lookups of a call: the table, the index, and the axis of the table."""
    match call.target:
        case aten.embedding.default:
            table, index = call.refs()
            yield table, index, 0
        case aten.index_select.default:
            table, index = call.refs()
            yield table, index, call.argument("dim")
        case aten.index.Tensor:
            for dim, index in enumerate(call.argument("indices")):
                if index is not None:
                    yield call.refs()[0], index.value, dim


def _named(table: str, capture: Capture) -> str:
    """The name of a table: of the weight that it is made of, if it is made of one."""
    makers, name = capture.makers(), table
    while name in makers and len(makers[name].refs()) == 1:
        name = makers[name].refs()[0]
    return name if name in capture.origins else table
