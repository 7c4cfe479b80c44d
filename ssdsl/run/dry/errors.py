"""Diagnostics of `ssdsl check --device cuda`: what a step does that no GPU does, or that a GPU waits for."""

from ssdsl.text.diagnostic import Diagnostic


class _AtOperator(Diagnostic):
    """`place` says where in the model and in the plan the operator is."""

    note = "{place}"
    operator: str
    times: str
    place: str


class OperandsOnTwoDevices(_AtOperator):
    """An operator of the step has a tensor on the GPU and one in the host's memory. PyTorch raises an error there.

    The tensor in the host's memory was probably made without a device, as by `torch.arange(n)`. A tensor without axes
    may be on the host: it is a number.
    """

    code = "E0520"
    title = "`{operator}` has operands on the GPU and in the host's memory, {times} a step"
    help = "make tensors on the device of the others: `torch.arange(n, device=x.device)`"


class HostWaits(_AtOperator):
    """The host waits within a step until the GPU has done all that was started, and meanwhile starts nothing new. So
    the GPU has nothing to do while the host catches up, and no communication overlaps.

    It waits where it reads a number of a tensor (`x.item()`, `x.tolist()`, `if x.any():`), where the size of a result
    depends on numbers (`x.nonzero()`, `x[mask]`), and for copies between host and GPU that block. Two places are
    allowed: at the end of a step, for its loss, and where experts' rows are sent, because their numbers must be known.
    """

    code = "E0521"
    title = "the host waits for the GPU at `{operator}`, {times} a step"
    help = (
        "compute on the device: `torch.where` in place of `if`, a mask in place of `x[mask]`, `non_blocking=True` for\n"
        "copies to it"
    )


class NeverAwaited(Diagnostic):
    """The program starts communication and never waits until it is done. What it brings may be read before it has
    arrived, and what it sends may be overwritten while it leaves."""

    code = "E0522"
    title = "role {role} never waits for what it has started: {count}"
    note = "{started}"
    help = "wait for each start once, before its result is read"
    role: str
    count: str
    started: str


class CannotRunDry(Diagnostic):
    """A step of a role was run with tensors that have shapes and no numbers, as on PyTorch's meta device, and an
    operator failed. Operators of your own need a function that computes their results' shapes
    (`torch.library.register_fake`)."""

    code = "E0523"
    title = "role {role} cannot be run without a GPU: {reason}"
    note = "{place}"
    help = "give operators of your own a fake kernel, or check with a GPU: `ssdsl run --device cuda`"
    role: str
    reason: str
    place: str
