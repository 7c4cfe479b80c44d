"""Mutants of a program: each one thing that a compiler could get wrong, as a named generator over the frozen IR.

`mutants(program)` yields them all. A mutant changes the numbers that training computes (or makes it hang or crash),
unless `is_harmless` says why it does not.
"""

from tests.prove.mutations import (  # noqa: F401  each adds its kinds to the table
    communication,
    draws,
    earlier,
    functions,
    in_flight,
    kinds,
    loss,
    memory,
    operators,
    params,
    results,
    roles,
    rows,
    transfers,
    types,
    windows,
)
from tests.prove.mutations.mutant import MUTATIONS, Found, Mutant, instructions, mutants, put

__all__ = ["MUTATIONS", "Found", "Mutant", "instructions", "mutants", "put"]
