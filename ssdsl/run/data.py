"""Checks `--data file.py:function` before the processes start."""

from pathlib import Path
from typing import Any

from ssdsl.model.load.model import Model
from ssdsl.model.load.user_file import Mistakes, UserFile
from ssdsl.run.data_errors import BadData, DataFailed, DataFileMissing, DataFunctionMissing, DataUnlike, SamplesLeftOut
from ssdsl.runtime.data.batch_spec import BatchSpec
from ssdsl.runtime.data.loader import Loader
from ssdsl.runtime.data.rank_dataset import Workers
from ssdsl.runtime.data.user_data import data_of, loader_arguments
from ssdsl.runtime.errors import EngineError
from ssdsl.runtime.program.table import BatchInput
from ssdsl.runtime.ranks.control import LoneControl
from ssdsl.text.diagnostic import Diagnostic, PlanError
from ssdsl.text.source import Source, Span

MISTAKES = Mistakes(DataFileMissing, DataFunctionMissing, DataFailed, BadData)
GIVE = "return a torch Dataset, a DataLoader, or an iterable of batches"


def check_data(spec: str, model: Model) -> str:
    """The specification of data to train on, for the processes, after a check that the first batch fits the model.
    Raises PlanError."""
    return _checked(spec, model, evaluate=False)[0]


def check_eval_data(spec: str, model: Model) -> tuple[str, tuple[Diagnostic, ...]]:
    """The specification of data to evaluate on, for the processes, after a check that the first batch fits the model;
    with a warning if some samples make no whole batch. Raises PlanError."""
    found, loader, place = _checked(spec, model, evaluate=True)
    if not (left := loader.left_out):
        return found, ()
    return found, (SamplesLeftOut(place, left, loader.feed.samples),)


def _checked(spec: str, model: Model, evaluate: bool) -> tuple[str, Loader, Span | None]:
    """The specification, the loader that made the first batch, and the place of the function."""
    file = UserFile.open(Source("--data", spec), MISTAKES)
    function = file.function(file.module())
    with file.diagnosed(f"in `{file.name}`"):
        data = data_of(function)
    place = file.definition(function)
    if not (hasattr(data, "__getitem__") or hasattr(data, "__iter__")) or isinstance(data, dict | str):
        what = "nothing" if data is None else f"a {type(data).__name__}"
        raise PlanError(BadData(place, f"function `{file.name}` returns {what}, which is no data to train on", GIVE))
    loader = _check_first_batch(data, model, place, evaluate)
    return f"{Path(file.path).resolve()}:{file.name}", loader, place


def _check_first_batch(data: Any, model: Model, place: Span | None, evaluate: bool) -> Loader:
    """The loader of a single device, after it has made the first batch."""
    example = model.batches[0]
    inputs = {
        n: BatchInput(tuple(t.shape), str(t.dtype).removeprefix("torch."), model.axes[n]) for n, t in example.items()
    }
    feed = BatchSpec.of(inputs, BatchSpec.of(inputs, {}).wholes(), casts=model.precision is not None)
    try:
        loader = Loader(data, feed, LoneControl(), **loader_arguments(data, feed.samples, evaluate))
        loader.workers = Workers()
        next(iter(loader))
        return loader
    except EngineError as error:
        fact, _, detail = error.reason.removeprefix("batch 0 of epoch 0: ").partition("\n")
        raise PlanError(DataUnlike(place, model.name, fact, detail.strip(), error.help)) from error
