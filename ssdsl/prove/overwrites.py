"""Steps that work in place: only on tensors that nobody needs any more, autograd and recomputation included."""

from ssdsl.ir.function import Function, Instr, Op, Reshard, reads_of, results_of
from ssdsl.ir.value import Name
from ssdsl.model.ops.registry import row
from ssdsl.prove.facts import Facts
from ssdsl.prove.failures import Rule

# The backward of a product needs its factors, not the result, and makes a new tensor for the gradient of each factor.
# (An addend is different: its gradient may be the very gradient of the result.)
PRODUCTS = frozenset(
    """
    linear mm bmm mv dot matmul addmm addmv baddbmm bilinear conv1d conv2d conv3d
    conv_transpose1d conv_transpose2d conv_transpose3d
    """.split()
)
OWN_CALL = ("", "conv_part", "conv_transpose_part")  # of such a product: plain, or of what its windows read


def check_overwrites(facts: Facts, function: Function) -> None:
    """Adds a failure for each step in place that may destroy what is still read."""
    made: dict[Name, tuple[int, Instr]] = {}
    readers: dict[Name, list[tuple[int, Instr]]] = {}
    for number, section in enumerate(function.sections):
        for instr in section.body:
            made.update((v.name, (number, instr)) for v in results_of(instr))
            for read in dict.fromkeys(reads_of(instr)):
                readers.setdefault(read, []).append((number, instr))
    leaving = {o.name for o in function.outputs}

    def value_is_free(instr: Reshard, number: int) -> bool:
        """Nobody else reads it, its producer does not keep it, and no recomputed region begins with it."""
        producer = made.get(instr.source)
        if producer is None or instr.source in leaving or len(readers[instr.source]) != 1:
            return False
        return _is_product(facts, producer[1]) and (producer[0] == number or not function.sections[number].recompute)

    def gradient_is_free(instr: Reshard, number: int) -> bool:
        """It is a tensor that the backward of a product has just made, in the same region."""
        name = instr.result.name
        users = readers.get(name, [])
        return (
            bool(users)
            and name not in leaving
            and all(n == number and _is_product(facts, i) and _is_factor(facts, i, name) for n, i in users)
        )

    for number, section in enumerate(function.sections):
        for instr in section.body:
            if not isinstance(instr, Reshard):
                continue
            where = f"function `{function.name}`, reshard to {instr.result.name}"
            if instr.in_place[0] and not value_is_free(instr, number):
                facts.failures.add(
                    Rule.OVERWRITES, where, instr.source, "a copy", "forward in place", function.submesh.mesh.span
                )
            if instr.in_place[1] and not gradient_is_free(instr, number):
                facts.failures.add(
                    Rule.OVERWRITES,
                    where,
                    f"gradient of {instr.result.name}",
                    "a copy",
                    "backward in place",
                    function.submesh.mesh.span,
                )


def _is_product(facts: Facts, instr: Instr) -> bool:
    if not isinstance(instr, Op) or instr.operator not in facts.operators:
        return False
    operator = facts.operators[instr.operator]
    if not operator.target.startswith("aten::"):  # a user's row says it of its operator
        return row(operator).fresh and not instr.kernel.function
    return operator.kind in PRODUCTS and instr.kernel.function in OWN_CALL


def _is_factor(facts: Facts, instr: Instr, name: Name) -> bool:
    assert isinstance(instr, Op)
    operands = facts.operators[instr.operator].inputs
    return all(not o.once for o, r in zip(operands, instr.reads, strict=False) if r == name)
