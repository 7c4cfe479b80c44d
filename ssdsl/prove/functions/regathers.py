"""Checks the conversions that backward gathers again: all devices of the group must gather, at the same time."""

from ssdsl.ir.comm import AllGather
from ssdsl.ir.function import Backward, Function, Reshard, Section
from ssdsl.prove.facts import ProofFacts
from ssdsl.prove.failures import Rule


def check_again(facts: ProofFacts, function: Function) -> None:
    """Adds a failure for each conversion marked `again` that backward may not repeat."""
    unlike = {read for op in function.operators() if op.kernel.function for read in op.reads}
    for section in function.sections:
        for instr in (i for i in section.body if isinstance(i, Reshard) and i.again):
            why = "read by a kernel that may keep it on some devices alone" if instr.result.name in unlike else ""
            if why := why or _wrong(function, section, instr):
                where = f"function `{function.name}`, reshard to {instr.result.name}"
                wanted = "a gather by all devices, in a backward of one task"
                facts.failures.add(Rule.AGAIN, where, instr.source, wanted, why, function.submesh.mesh.span)


def _wrong(function: Function, section: Section, instr: Reshard) -> str:
    if function.backward is not Backward.WHOLE:
        return f"a backward of kind {function.backward.value}"
    if section.recompute:
        return "a section that is recomputed"
    if instr.rows is not None or not instr.forward or not all(isinstance(s, AllGather) for s in instr.forward):
        return "other steps than gathers"
    return ""
