"""Failures of a proof: the rules, one a row, and the diagnostic that shows where one is broken."""

from enum import Enum

from ssdsl.text.diagnostic import Diagnostic


class Rule(Enum):
    """The rules of the proof; the value of each is the sentence that says how it is broken."""

    # names
    UNKNOWN = "it names something that does not exist"
    TWICE = "a name is given twice"
    UNREADY = "a value is read before it is made"
    KIND = "sections of one kind differ in more than names"
    # operators
    READ = "an operator reads a value that is not as it needs it"
    ANNOTATED = "the type written at a value is not the one that it has"
    SIZE = "the local size written at a value is not the one that it has"
    DTYPE = "the dtype written at a value is not the one that it has"
    COORDINATE = "an operator is split along something that is no coordinate of its function"
    TWO_SPLITS = "an operator has two splits along one coordinate"
    NEST = "the parts of a dimension do not nest"
    FIXED = "an operator is split along a dimension that cannot be split"
    COMBINED = "an operator that combines its parts is split without the kernel that does so"
    KERNEL = "the kernel of an operator's part is not the one that it needs"
    FIRST = "an addend is not added by exactly one part"
    LINEAR = "an operator works on partial sums in which it is not linear"
    DRAW = "a random operator draws other numbers than a single device"
    # communication
    STEP = "a step of communication does not fit the tensor that it is given"
    CUT = "the place of a digit in the local tensor is wrong"
    ELEMENTS = "the payload of a step is not the tensor that it is given"
    RESULT = "steps of communication do not lead where they should"
    IN_FLIGHT = "communication starts before its source is there, or is not awaited once"
    # memory
    OVERWRITES = "a step overwrites a tensor that is still needed"
    ORDER = "an operator that asks how its operands lie in memory is not given them as on one device"
    UNREAD = "a value is computed or kept that nothing reads"
    # gradients
    NO_GRADIENT = "a value from which the loss follows gets no gradient"
    UNLIKE = "gradients of unlike types are added"
    PARTIAL_GRADIENT = "an operator is given a gradient that is a partial sum along one of its own splits"
    GRADIENT = "the gradient written at a value is not the one that it gets"
    COUNTED = "a gradient that is the same in every task is added once per task"
    BACKWARD = "a function's backward runs in another way than its values need"
    SIDES = "the halves of an operator's backward are divided wrongly"
    # between functions
    SOURCE = "an input does not name what its producer leaves"
    MERGE = "the parts of a value are joined in a wrong way"
    INDEX = "a task reads another part than its own"
    PIECES = "the pieces that travel are not the tensor that arrives"
    PART = "devices are given, or prepare, another part of a tensor than the one that its readers count on"
    PREPARED = "a function reads what the prologue does not make"
    # parameters
    PARAM = "a parameter is not what the functions use"
    FLAT = "a trained weight is not in exactly one flat parameter of its submesh"
    COMPLETION = "the gradient of a weight is not completed as it needs"
    AGAIN = "a value that backward gathers again may not be the one that was gathered"
    GATHER = "the weights that a section gathers are not those that it reads"
    AHEAD = "weights are gathered ahead that no section reads next"
    UPDATE = "weights are not updated exactly once, behind their gradients"
    HOME = "a weight is not stepped on as a whole at one place, where the plan says so"
    STAYS = "gathered weights outlive their update, or stay on some of the devices that gather them together"
    STALE = "weights that other devices have updated are not gathered, or not awaited where they are read"
    REDUCE = "the sum of a gradient is not taken exactly once behind its last addend"
    # roles
    RUN_ONCE = "a task does not run exactly once"
    EARLY = "a task runs before what it needs is there"
    MESSAGE = "the two ends of a message do not match"
    FREED = "a value is dropped while it is still needed, or twice"
    DEADLOCK = "devices wait for each other in a circle"
    # the whole
    COVERED = "an operator that the loss needs is not in exactly one function"
    LOSS = "the reported loss is not the whole loss"
    RESULTS = "an output that was asked for is not kept, or not complete"
    UPDATED_BUFFER = "a buffer does not take its new value exactly once"


class ProofFailed(Diagnostic):
    """The compiled program would not compute what a single device computes, or this could not be proved.

    Before a program runs, ssdsl derives, from its instructions alone, the part of a tensor of the model that each local
    tensor is, forward and backward. It checks that each instruction gets what it needs, that every gradient is counted
    once and completed before the weights are updated, and that no devices wait for each other in a circle. One of these
    checks has failed. The text names the instruction, the tensor, the operators of the model that make it and read it,
    the wanted type and the found one. It is a mistake of the compiler, not of the plan. The statement shown is the one
    behind the instruction; a plan that does not cut these operators avoids the instruction.
    """

    code = "E0451"
    title = "not proved: {rule}"
    label = "the instruction follows from this statement"
    note = "in {where}\ntensor: {tensor}\nof: {places}\nwanted: {wanted}\nfound:  {had}"
    help = "this is a bug of ssdsl: report it with the plan and the model{without}"
    rule: str
    where: str
    tensor: str
    wanted: str
    had: str
    operators: tuple[tuple[str, str, str], ...] = ()  # those that make and read the tensor: kind, path, source line

    def text(self, template: str) -> str:
        """The text of a template, without the lines on a tensor if the failure has none."""
        return "\n".join(line for line in super().text(template).split("\n") if line not in ("tensor:", "of:"))

    @property
    def places(self) -> str:
        return ", ".join(f"`{kind}` in module `{path}` ({source})" for kind, path, source in self.operators)

    @property
    def without(self) -> str:
        """The advice to leave these operators out of the split meanwhile; empty if the failure names none."""
        out = dict.fromkeys(f'model["{path}"].{kind}' for kind, path, _ in self.operators)
        return f";\nuntil it is fixed, split `{' - '.join(('model', *out))}` instead of `model`" if out else ""


class Wrong(Exception):
    """A broken rule; a caller that knows the place catches it and adds a failure."""

    def __init__(self, rule: Rule, wanted: object = "", had: object = "") -> None:
        super().__init__(rule.value)
        self.rule, self.wanted, self.had = rule, str(wanted), str(had)
