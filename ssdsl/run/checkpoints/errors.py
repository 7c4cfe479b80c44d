"""Diagnostics of checkpoints, and of the files that they are converted from or to: E053x."""

from ssdsl.text.diagnostic import Diagnostic


class CheckpointWrong(Diagnostic):
    """There is no checkpoint in the folder, or it cannot be read.

    A run's folder has a file `latest`, which names the newest checkpoint, and a folder for each checkpoint. Any folder
    that torch.distributed.checkpoint wrote is a checkpoint as well: it has a file `.metadata`. A file that is
    truncated, or whose checksum differs, is not used. No code from the files runs.
    """

    code = "E0530"
    title = "{reason}"
    reason: str
    change: str


class WeightsUnreadable(Diagnostic):
    """A file of weights is not what its command reads.

    `from-torch` reads files of `torch.save`: tensors by name, or `{"model": tensors by name, "optim": an optimizer's
    state_dict}`. It reads only tensors and plain values, never code. `from-safetensors` reads a `.safetensors` file, or
    a folder with one, or with several and their `.index.json`.
    """

    code = "E0531"
    title = "cannot read weights from `{file}`: {reason}"
    file: str
    reason: str
    change: str


class OptimizerWithoutNames(Diagnostic):
    """An optimizer's state_dict numbers its weights, but a checkpoint needs their names.

    An optimizer made from `model.named_parameters()` saves the names with the numbers. For one made from
    `model.parameters()` it is unknown which weight a number is.
    """

    code = "E0532"
    title = "the optimizer's state in `{file}` does not name its weights"
    help = "make the optimizer from model.named_parameters() and save again, or take the file without it"
    file: str


class NoOptimizerState(Diagnostic):
    """The checkpoint has only weights, or no parameter groups of the optimizer: it was made from a file of weights, or
    saved before there was an optimizer."""

    code = "E0533"
    title = "the checkpoint `{folder}` has no state of an optimizer"
    help = "leave out --optim"
    folder: str


class SafetensorsMissing(Diagnostic):
    """The package `safetensors` reads and writes these files; `transformers` installs it."""

    code = "E0534"
    title = "the package `safetensors` is not installed"
    help = "pip install safetensors"


class CheckpointsOfEarlierRun(Diagnostic):
    """A run that begins anew would save among the checkpoints of an earlier one: they have steps of the same numbers,
    `--keep` would remove them, and `--resume` would go on with whichever was saved last.

    With `--resume` and `--save` of one folder a run goes on where the earlier one ended, or begins if there is none.
    """

    code = "E0535"
    title = "`{folder}` has checkpoints of an earlier run"
    help = "go on with it: --resume {folder}; or save to another folder"
    folder: str
