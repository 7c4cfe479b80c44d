"""Diagnostics E0340 to E0346, E0351 and E0352: the forward does something that its captured graph would not do, so
training would differ."""

from ssdsl.text.diagnostic import Diagnostic


class ForwardFailed(Diagnostic):
    """The module itself raises an exception for the example batch; ssdsl is not involved.

    The place shown is the last line of the user's code that was running.
    """

    code = "E0340"
    title = "the {phase} of model `{model}` fails: {error}"
    note = "{detail}"
    help = "correct the module; it has to run with the example batch: module(**inputs)"
    phase: str
    model: str
    error: str
    detail: str


class CustomGradient(Diagnostic):
    """A `torch.autograd.Function` cannot be an operator of a program, and its backward is not the derivative of its
    forward.

    A function of your own is one operator of the graph, with its own backward: programs import the class and call its
    `apply`. For that, a module on the path must have the class under its name (so it is not defined inside a function,
    nor in the script that Python was started with), and its arguments must be tensors, numbers, texts, or lists of
    these.

    Otherwise the program has the operators of the forward and differentiates these. This is right only if the backward
    is the derivative; ssdsl compares both on the example batch. Any other gradient (straight-through, reversal,
    clipping) would be lost. An operator of `torch.library.custom_op` with `register_autograd`, in a module of its own,
    has its own backward, too. If the backward only passes the gradient on, operators say the same:
    `x + (y - x).detach()` has the value of `y` and the gradient of `x`.
    """

    code = "E0341"
    title = "the backward of `{function}` would be lost: {reason}"
    note = "called in {where}; a program would differentiate the operators of the forward\n{compared}"
    function: str
    reason: str
    where: str
    compared: str
    change: str


class HiddenTensors(Diagnostic):
    """A `torch.autograd.Function` reads weights or other tensors that are not among the arguments of its `apply`.

    It gets them through a closure, a module or a global name, as a checkpoint or a reversible block does: it runs the
    module again in its backward, and adds gradients to weights behind autograd's back. A program computes gradients of
    operands alone, so these would be lost. Give the tensors as arguments of `apply`, and return their gradients.

    To save memory, no such function is needed: `recompute` in a plan says which modules run again in backward, and
    `torch.utils.checkpoint.checkpoint(..., use_reentrant=False)` is captured as what it computes.
    """

    code = "E0351"
    title = "`{function}` reads tensors that are not arguments of its `apply`"
    note = "called in {where}; gradients of these tensors would be lost"
    help = (
        "pass them to `apply`, and return their gradients from `backward`\n"
        "to save memory, call the modules themselves, and write `recompute` into the plan; of torch's own checkpoint, "
        "use torch.utils.checkpoint.checkpoint(..., use_reentrant=False)"
    )
    function: str
    where: str


class ArgumentChanged(Diagnostic):
    """The forward of a `torch.autograd.Function` changes a tensor that it is given (`ctx.mark_dirty`).

    An operator of a graph makes new values from its operands and changes none: other operators may read the same
    operand, or parts of it on other devices. Compute the result in a new tensor; a program frees what it no longer
    needs.
    """

    code = "E0352"
    title = "the forward of `{function}` changes an argument in place"
    note = "called in {where}"
    help = "return a new tensor: `x * y` in place of `x.mul_(y)`, and no `ctx.mark_dirty`"
    function: str
    where: str


class HookLost(Diagnostic):
    """A hook runs in the backward pass, or on every module; a program would not call it.

    Forward hooks and forward pre-hooks of a module are captured with its forward. Hooks on gradients (`register_hook`,
    `register_full_backward_hook`, `register_post_accumulate_grad_hook`), hooks on saved tensors and hooks that are
    registered for all modules are not captured, and training would silently differ.
    """

    code = "E0342"
    title = "{hook} of {owner} would never be called"
    note = "it runs outside the forward, and a program consists of the operators of the forward"
    help = "remove it, or compute what it does in the forward"
    hook: str
    owner: str


class TensorChanged(Diagnostic):
    """The forward changes a tensor in place in a way that a graph of values cannot follow.

    Changes of activations become new values, and changes of registered buffers and of frozen weights are part of the
    step. But an input, a trained weight or a plain attribute that the forward changes would keep its old value in the
    program, and so would a buffer that an operator changes without declaring it. A change that autograd does not see
    (of `x.detach()` or `x.data`, or under `no_grad`) would stop the gradient, while eager PyTorch lets it through.
    """

    code = "E0343"
    title = "the forward changes {what}"
    note = "{operation} in {where}: {reason}"
    what: str
    operation: str
    where: str
    reason: str
    change: str


class StateChanged(Diagnostic):
    """The forward changes something that persists from call to call and is no registered buffer.

    The forward is captured once; values that Python computes in it (a counter, a list that grows, a random number) are
    constants in the program. Attributes that have the same value after every call, such as caches, are harmless. Put a
    tensor that changes from step to step into a buffer that the forward changes in place: `self.steps.add_(1)`.
    """

    code = "E0344"
    title = "the forward {does}"
    note = "in {where}: {reason}"
    does: str
    where: str
    reason: str
    change: str


class AutocastElsewhere(Diagnostic):
    """An autocast region is for another kind of device than the one the model is captured on.

    The casts of autocast become operators of the graph when the region is captured. A region for another device casts
    nothing here, so the program would compute in another precision than the module does on that device.
    """

    code = "E0345"
    title = "this autocast is for `{asked}`, but the model is captured on `{here}`"
    note = "in {where}: it casts nothing on `{here}`, so a program would not cast on `{asked}`"
    help = "take the device from a tensor: torch.autocast(x.device.type, dtype=...)"
    asked: str
    here: str
    where: str


class CaptureDiffers(Diagnostic):
    """The captured graph, run in one process, does not compute what the untouched module computes.

    ssdsl runs the captured graph and the module once each on the same batch and weights, when it captures a small
    model, and before any model is trained. It compares the loss, all gradients and all buffers. They differ if the
    forward depends on something other than its inputs, weights and buffers: a global variable, the time,
    `torch.compiler.is_compiling()`. A missing gradient differs from one of zeros, because an optimizer decays a weight
    whose gradient is zero. The plan is not the cause.
    """

    code = "E0346"
    title = "the captured graph does not compute what model `{model}` computes: {what} differs"
    note = "{numbers}\n{reason}"
    help = (
        "make the forward a function of its inputs, weights and buffers, with no global state, time or random numbers"
    )
    model: str
    what: str
    numbers: str
    reason: str
