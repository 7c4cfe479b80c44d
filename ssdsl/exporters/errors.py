"""What a compiled plan says that a foreign form has no word for."""

from ssdsl.text.diagnostic import Diagnostic


class NoStyle(Diagnostic):
    """A `tp_plan` of transformers has a style for each module or weight, and none says what the plan says of this one.

    A style names all layers alike; it cuts a weight into equal parts along one axis; what a module reads or leaves is
    whole or a part of the last axis. Experts that are divided are in an `ep_plan`.
    """

    code = "E0715"
    title = "no style of transformers says what the plan says of `{name}`"
    note = "{reason}"
    name: str
    reason: str
    change: str


class NoTransformer(Diagnostic):
    """`--tp-plan` writes names of modules of transformers; this model is none of transformers."""

    code = "E0716"
    title = "`{model}` is no model of transformers"
    help = "a tp_plan is for these: --model hf:TYPE, or a model of the zoo that `ssdsl models` lists as one"
    model: str


class NotTensorParallel(Diagnostic):
    """A `tp_plan` says how weights are cut along one axis of devices, and this plan says something else.

    Micro-batches, replicas and state in parts are no part of it: what the plan says of these is left out. Stages are
    not, as they put modules on different devices.
    """

    code = "E0717"
    title = "the plan is no tensor parallelism along one axis"
    note = "{reason}"
    reason: str
    change: str
