"""Diagnostics E0319 to E0323: a graph cannot be read or written, or a command needs more than a graph."""

from ssdsl.text.diagnostic import Diagnostic


class GraphUnreadable(Diagnostic):
    """`--model` names a file that does not exist, or is no captured graph.

    `ssdsl capture MODEL -o FILE.graph` writes such a file. It is read by the version of ssdsl that wrote it, and by
    later ones that know its version. A graph is data: reading it loads neither torch nor the model.
    """

    code = "E0319"
    title = "cannot read the graph `{path}`: {reason}"
    help = "write it: ssdsl capture MODEL -o {path}"
    path: str
    reason: str


class GraphWithoutModel(Diagnostic):
    """A command that runs the model, or needs its weights, was given a captured graph.

    A graph describes what a model computes, but has neither its module nor the numbers of its weights. `check`,
    `prove`, `simulate`, `show`, `search`, `sweep`, `diff` and `repl` take a graph, and `compile` makes a program of it
    that can be read but not run; `run`, `verify` and `profile` need the model.
    """

    code = "E0320"
    title = "`{path}` is a graph, without the module and the weights of its model"
    help = "give the model that it was captured from: {command}"
    path: str
    command: str


class GraphNotData(Diagnostic):
    """A graph cannot be written, because a row of the model's file has a function where a graph file can hold only
    data.

    Rows are data in the graph. Their functions for dimensions and FLOPs have been called at capture; functions for
    saved tensors, for collectives and for the text of a call are called later. Give these as texts and tuples.
    """

    code = "E0321"
    title = "the graph of `{model}` cannot be written: it has {what}"
    help = "give this as data, as docs/operators.md describes it"
    model: str
    what: str


class TorchMissing(Diagnostic):
    """A model has to be captured, which needs torch, and torch is not installed.

    A graph that was captured on another machine needs no torch: `ssdsl capture MODEL -o FILE.graph` writes it there.
    """

    code = "E0322"
    title = "`{model}` has to be captured, and torch is not installed"
    help = "install torch, or give a graph: ssdsl capture {model} -o FILE.graph, where torch is"
    model: str


class GraphOfOtherPrecision(Diagnostic):
    """`--precision` says in which type a model is captured, and this graph was captured in another one."""

    code = "E0323"
    title = "`{path}` was captured {how}, not with --precision {wanted}"
    help = "capture it so: ssdsl capture {model} --precision {wanted} -o {path}; or leave out --precision"
    path: str
    model: str
    wanted: str
    own: str | None

    @property
    def how(self) -> str:
        """The precision of the graph in words."""
        return "as the model computes" if self.own is None else f"with --precision {self.own}"
