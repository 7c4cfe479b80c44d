"""Some cells of the table that `python -m bench models` prints: families of models under common plans."""

import importlib.util

import pytest

from bench.models.run import Row, main, rows, try_row

CELLS = [
    ("nasty", "capacity", "tensor"),  # a mixture with a capacity, by its experts' width
    ("nasty", "spectral", "zero3"),  # complex numbers that are views of a gathered weight
    ("nasty", "twice", "1f1b"),  # weights that some terms of the loss do not see
    ("nasty", "dynamic", "data"),  # windows
    ("nasty", "customtied", "uneven"),  # an operator with a row of its own, dropout and a tie, computed again
    ("nasty", "checkpointed", "1f1b"),  # the module's own checkpoints
    ("nasty", "averages", "uneven"),  # buffers that micro-batches read while they change
    ("nasty", "contrast", "tensor"),  # two calls of a batch norm, draws of the whole batch
]
SHIPPED = [
    ("mixtral", "causal", "1f1b"),  # experts of micro-batches
    ("resnet", "image", "zero3"),
    ("t5", "seq2seq", "data"),
]
if importlib.util.find_spec("transformers"):
    CELLS += SHIPPED


@pytest.mark.slow
@pytest.mark.thinned(9)
@pytest.mark.parametrize(("family", "head", "plan"), CELLS)
def test_cell_is_equal(family: str, head: str, plan: str) -> None:
    (row,) = (r for r in rows(dropout=False) if (r.family, r.head) == (family, head))
    (cell,) = try_row(row, [plan])
    assert cell.outcome == "equal", cell.reason


def test_command_prints_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--family", "nasty", "--head", "siamese", "--plan", "data"]) == 0
    assert "1 of 1 equal" in capsys.readouterr().out


def test_a_model_that_fails_is_no_success() -> None:
    def build() -> None:
        raise ValueError("no such model")

    (cell,) = try_row(Row("broken", "model", build, {"data": ""}), ["data"])  # type: ignore[arg-type]
    assert cell.is_failure and "no such model" in cell.reason
