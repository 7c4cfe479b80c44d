"""Diagnostics of the comparison with tensors that another program saved: E0545 to E0549."""

from ssdsl.text.diagnostic import Diagnostic


class TensorsUnreadable(Diagnostic):
    """`ssdsl verify --against FILE` reads tensors by name: a `.safetensors` file, or a dict that `torch.save` wrote.
    Only tensors and plain numbers are read, never code.

    The names say what a tensor is:

        start/NAME          a weight or buffer before the first step
        batch/STEP/INPUT    an input of the model in a step, from 0, of the whole batch
        loss/STEP           the loss of the whole batch
        grad/STEP/NAME      the gradient of a weight, as the optimizer gets it
        weight/NAME         a weight or buffer after the last step
        buffer/NAME         the same

    Each is optional. Dicts and lists may be nested, where the keys make the name: `saved["grad"][0]["fc.weight"]`. A
    file of weights alone, such as a state_dict, has the weights after the last step.
    """

    code = "E0545"
    title = "cannot compare with `{file}`: {reason}"
    help = "{change}"
    file: str
    reason: str
    change: str


class TensorsMisfit(Diagnostic):
    """A tensor of another program has another shape than the model's, or a type of another kind: it is of another
    model, or a part of a tensor. FSDP and tensor parallelism leave a part on each rank: save the whole tensor
    (`tensor.full_tensor()` of a DTensor, `FullStateDictConfig` of FSDP1). An input is that of the whole batch.
    """

    code = "E0546"
    title = "`{name}` in `{file}` is {found}, and the model's is {expected}"
    help = "{change}"
    file: str
    name: str
    found: str
    expected: str
    change: str


class TensorsUnknown(Diagnostic):
    """The file has tensors of which the model knows nothing: they are not compared.

    Names are those of `model.named_parameters()` and `model.named_buffers()`. What wrappers put into them is left out:
    `module.` of DDP, `_orig_mod.` of torch.compile, `_fsdp_wrapped_module.` of FSDP, `_checkpoint_wrapped_module.`. A
    prefix that all names of the file lack is put in front. Flat parameters of FSDP1 are no weights of the model.
    """

    code = "E0547"
    severity = "warning"
    title = "not compared: {count} of `{file}` unknown to the model"
    note = "{listed}"
    help = "{change}"
    file: str
    count: str
    listed: str
    change: str


class NothingToCompare(Diagnostic):
    """Nothing in the file is a loss, a gradient, or a weight after the last step, of this model and these steps.
    Weights at the start, and batches, say where both programs begin, and are not compared."""

    code = "E0548"
    title = "`{file}` has nothing to compare"
    note = "{has}"
    help = "save losses, gradients or weights under the names that `ssdsl explain E0545` lists"
    file: str
    has: str


class ProgramsDiffer(Diagnostic):
    """The plan's numbers differ from those that another program saved, by more than rounding explains.

    What is allowed is what `ssdsl explain E0512` says, for two programs that each take their own steps. The plan is
    compared with a single device too. Where these two agree, the other program computes something else. The usual
    reasons, the likeliest first: it began with other weights (save `start/NAME`), read other batches (save
    `batch/STEP/INPUT`), or in another order; its gradients are summed over ranks or micro-batches and not averaged, or
    were clipped before they were saved; its loss is the mean of one rank's part; its optimizer or learning rate is
    another one (`--optimizer`, `--lr`); it computes in another precision; or it draws dropout from another generator.

    The message names the first tensor that differs, in the order of training, because later differences mostly follow
    from it.
    """

    code = "E0549"
    title = "{what} `{name}` differs from that in `{file}`"
    note = "{where}: {got:.9g} instead of {expected:.9g}\n{reason}\n{ratio}\n{summary}\n{single}"
    help = "{change}"
    file: str
    what: str
    name: str
    where: str
    got: float
    expected: float
    reason: str
    ratio: str
    summary: str
    single: str
    change: str
