"""Diagnostics of the rows of operators: one is missing, does not fit a call, or is no row."""

from ssdsl.model.capture.errors import OfCall
from ssdsl.text.diagnostic import Diagnostic


class MissingRule(OfCall):
    """The model calls an operator without a row in ssdsl's table, and the Python module that defines it is unknown.

    A row says which axes of an operator's inputs and outputs are the same dimension, as an einsum over named letters.
    Without a row, each device computes all of the operator; but a program must import the operator's module. The module
    is known if it registers the operator with `torch.library.custom_op` or `register_fake` and can be imported
    by its name: define operators in a module of their own, in a folder on the path. Or give a row that names it.

    The help shows a row to paste into the model's file. There no dimension can be split, which is always right; remove
    the `!` behind a letter if parts of the results need only the same parts of the inputs. A letter that the results
    lack is summed. An operator whose parts depend on each other also needs a `kernel`. The tensors that autograd keeps
    are measured, and FLOPs are counted from the sizes, unless the row says something else. docs/operators.md describes
    every field; packages give their rows by the entry point `ssdsl.ops`.
    """

    code = "E0331"
    title = "no rule for operator `{kind}`, and the module that defines it is unknown"
    note = "called {times} in module `{path}` at {source}"
    help = "add a row to the file of the model (`!`: whole; see docs/operators.md)\nimport ssdsl\n{row}"
    times: str
    row: str


class RowDoesNotFit(OfCall):
    """The signature in your row has other operands, or other axes, than a call of the operator.

    A signature has an entry for every tensor argument and result of a call, in the order of the operator's schema, and
    a letter for every axis. `...` stands for any number of axes; `?` after an operand means that it may be absent. If
    the axes depend on the arguments, give a function as `dims`: it gets the call and returns the signature.
    """

    code = "E0334"
    title = "the row of operator `{kind}` does not fit a call: {reason}"
    note = "called in module `{path}` at {source} as {shapes}"
    help = "give each of these tensors an entry and each axis a letter; `...` stands for any axes"
    reason: str
    shapes: str


class BadRows(Diagnostic):
    """The `OPS` of a model's file, or a package's entry point `ssdsl.ops`, do not give rows of operators.

    `OPS` is a list of `ssdsl.Op`. An entry point names such a list, a function that returns one, or a module that has
    it as `OPS`. A row for an operator that ssdsl has a row for is not used.
    """

    code = "E0335"
    title = "the rows of operators in {where} cannot be used: {reason}"
    help = 'give a list of rows for your own operators: OPS = [ssdsl.Op("mylib::scan", ...)]'
    where: str
    reason: str
