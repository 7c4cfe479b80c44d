"""Diagnostics of `--data`: of the file, its function, and the function's data, before or during training."""

from ssdsl.lang.suggest import counted
from ssdsl.model.load.errors import BadModel, FunctionMissing, ModelFileMissing, UserCodeFailed
from ssdsl.text.diagnostic import Diagnostic


class DataFileMissing(ModelFileMissing):
    """The Python file that `--data` names does not exist, or cannot be read."""

    code = "E0550"
    help = "give the path of a Python file and a function in it, as in --data path/to/file.py:function"


class DataFunctionMissing(FunctionMissing):
    """The file has no function with the name in `--data path/to/file.py:function`, or no name was given."""

    code = "E0551"
    help = "name a function that returns a data set, a DataLoader, or batches: --data {path}:{example}"


class DataFailed(UserCodeFailed):
    """Python raised an exception while it ran the file of `--data`, or its function.

    The place shown is the last line of the user's own file that was running; the error itself may come from a library
    that this line calls.
    """

    code = "E0552"


class BadData(BadModel):
    """The function of `--data` did not return data to train on.

    It takes no parameters and returns one of these: a `torch.utils.data.Dataset`, whose samples are shuffled and made
    into batches of the model's size; an `IterableDataset`, whose samples keep their order; a `DataLoader`, whose
    sampler, collate function and workers are used; or an iterable of batches, such as a generator or a list. Each
    process calls it, and loads only the part of each batch that it needs.
    """

    code = "E0553"


class DataUnlike(Diagnostic):
    """The first batch of `--data` does not fit the plan's model, or could not be made.

    A batch is a dictionary of tensors by the names of the model's inputs, or a tuple in their order, with the shapes
    and dtypes of the model's example batch. A data set has samples of it: tensors without the first axis.
    """

    code = "E0554"
    title = "the data do not fit `{model}`: {fact}"
    note = "{detail}"
    model: str
    fact: str
    detail: str
    change: str


class TrainingStopped(Diagnostic):
    """The run ended because of its data or options; the mistake showed only during training.

    A sample or batch could not be made, or does not fit the plan's model; or the ranks were given different data. All
    ranks end together, with the messages of the failing ones.
    """

    code = "E0555"
    title = "the run ended: {fact}"
    note = "{detail}"
    fact: str
    detail: str
    change: str


class SamplesLeftOut(Diagnostic):
    """The samples of `--eval-data` do not fill the last batch, so the mean loss is that of the others.

    The program of a run evaluates batches of one size. In Python, `engine.evaluate` takes them of any size.
    """

    code = "E0556"
    severity = "warning"
    title = "evaluation leaves out {count} at the end: a batch has {batch}"
    help = "return a number of samples that {batch} divides, or evaluate in Python, with `drop_last=False`"
    left: int
    batch: int

    @property
    def count(self) -> str:
        return counted(self.left, "sample")
