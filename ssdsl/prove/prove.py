"""Proves a program: runs all checks, and collects their failures."""

import time

from ssdsl.ir.program import Compute, Program, Start
from ssdsl.ir.references import dangling
from ssdsl.ir.value import Name
from ssdsl.lang.suggest import counted
from ssdsl.prove.facts import ProofFacts, facts_of
from ssdsl.prove.failures import ProofFailed, Rule
from ssdsl.prove.functions.alike import Classes
from ssdsl.prove.functions.backward import backward, check_again, check_halves
from ssdsl.prove.functions.flow import Flow
from ssdsl.prove.functions.forward import forward
from ssdsl.prove.functions.in_flight import check_between, check_in_flight
from ssdsl.prove.functions.overwrites import check_orders, check_overwrites, check_unread
from ssdsl.prove.functions.prologues import prologues
from ssdsl.prove.params import check_awaits, check_gathers, check_gradients, check_params
from ssdsl.prove.roles.deadlock import check_deadlock
from ssdsl.prove.roles.kept import check_kept
from ssdsl.prove.roles.roles import check_places, check_role, check_updates, parts_of
from ssdsl.prove.types.draws import check_draws
from ssdsl.prove.types.local import Local
from ssdsl.prove.whole import check_buffers, check_loss, check_operators, check_results
from ssdsl.record import Record
from ssdsl.text.diagnostic import PlanError

MOST_SHOWN = 10


class Proof(Record):
    """The result of all checks: counts of what was checked, and failures. Without failures the program is proved."""

    functions: int
    instructions: int
    values: int
    gradients: int
    tasks: int
    messages: int
    seconds: float
    failures: tuple[ProofFailed, ...]

    def __str__(self) -> str:
        if self.failures:
            return f"not proved: {len(self.failures)} failures"
        counts = {
            "function": self.functions,
            "instruction": self.instructions,
            "value": self.values,
            "gradient": self.gradients,
            "task": self.tasks,
            "message": self.messages,
        }
        return f"proved in {self.seconds:.2f} s: {', '.join(counted(n, word) for word, n in counts.items())}"


def prove(program: Program) -> Proof:
    """Checks that a program computes what a single device computes."""
    start = time.perf_counter()
    facts = facts_of(program)
    flow, gradients = Flow(facts, Classes(facts)), dict[int, dict[Name, Local]]()
    for text in dangling(program):
        facts.fail(Rule.UNKNOWN, "the program", "", "what it refers to", text)
    if not facts.failures:  # all other checks rely on it
        _check_functions(facts, flow, gradients)
        _check_roles(facts)
    return Proof(
        len(program.functions),
        sum(1 for f in program.functions for _ in f.body()),
        sum(len(t.types) for t in flow.typed.values()),
        sum(len(g) for g in gradients.values()),
        sum(1 for r in program.roles for a in r.actions if isinstance(a, Compute)),
        sum(1 for r in program.roles for a in r.actions if isinstance(a, Start)),
        time.perf_counter() - start,
        tuple(facts.failures),
    )


def _check_functions(facts: ProofFacts, flow: Flow, gradients: dict[int, dict[Name, Local]]) -> None:
    """Checks what every task computes: values forward, gradients backward, and the state that they change."""
    functions, prepared = facts.program.functions, prologues(facts)
    flow.note_messages()
    for function in functions:
        forward(facts, function, prepared.get(function.submesh, {}), flow)
    for function in reversed(functions):
        number = function.number
        gradients[number] = backward(facts, flow.typed[number], flow)
        check_gradients(facts, function, gradients[number])
        check_overwrites(facts, function)
        check_in_flight(facts, function)
        check_again(facts, function)
        check_halves(facts, flow.typed[number])
        check_gathers(facts, function)
        check_awaits(facts, function)
    check_between(facts)
    check_orders(facts)
    check_unread(facts)
    check_draws(facts)
    check_operators(facts)
    check_loss(facts, flow.typed)
    check_results(facts, flow.typed)
    check_buffers(facts, flow.typed)
    check_params(facts)


def _check_roles(facts: ProofFacts) -> None:
    """Checks the actions of each role in a step, and that roles do not wait for each other in a circle."""
    parts = parts_of(facts)
    check_places(facts)
    for role in facts.program.roles:
        check_role(facts, role, parts)
        check_updates(facts, role)
    check_kept(facts)
    check_deadlock(facts)


def require_proof(program: Program) -> Proof:
    """The proof of a program. Raises PlanError with the first failures, if there are any."""
    proof = prove(program)
    if proof.failures:
        raise PlanError(*proof.failures[:MOST_SHOWN])
    return proof
