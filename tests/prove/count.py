"""`python -m tests.prove.count [MOST]`: breaks every plan of `tests/ir/programs` and of these tests, and counts.

Of each plan and kind at most MOST mutants (default 3). A mutant that the proof accepts is run: one that then goes wrong
is a hole in the proof. Prints a row for each kind.
"""

import sys
from collections import Counter
from contextlib import chdir
from pathlib import Path

from ssdsl.ir.program import Program
from ssdsl.model.load import load
from ssdsl.model.load.model import Model
from ssdsl.prove.prove import prove
from tests.ir.conftest import _program as small_program
from tests.prove.conftest import _program as gpt_program
from tests.prove.mutations import mutants
from tests.prove.running import runs_wrong
from tests.prove.test_mutations import MODEL, OTHERS, PROGRAMS

IR = Path(__file__).parent.parent / "ir"


def programs() -> list[tuple[str, Program, Model]]:
    """Every plan with its program and its model."""
    found = []
    for path in sorted((IR / "programs").glob("*.ssp")):
        model = path.read_text().partition("\n")[0].removeprefix("# model: ")
        with chdir(IR):
            found.append((path.stem, small_program(path.stem), load(f"models.py:{model}")))
    gpt = load(MODEL)
    found += [(f"{plan} {params}", gpt_program(plan, MODEL, tuple(params.items())), gpt) for plan, params in PROGRAMS]
    return found + [(f"{plan} of {model}", gpt_program(plan, model, ()), load(model)) for plan, model in OTHERS]


def main() -> None:
    most = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    made, refuted, harmless = Counter[str](), Counter[str](), Counter[str]()
    holes = []
    plans = programs()
    for name, program, model in plans:
        assert not prove(program).failures, f"{name} is not proved"
        for mutant in mutants(program, most=most):
            made[mutant.kind] += 1
            if prove(mutant.program).failures:
                refuted[mutant.kind] += 1
            elif wrong := runs_wrong(mutant.program, model):
                holes.append(f"{name}: {mutant}: {wrong}")
            else:
                harmless[mutant.kind] += 1
    for kind in made:
        print(f"{kind:36} {made[kind]:5} mutants {refuted[kind]:5} refuted {harmless[kind]:4} run right")
    total = f"{made.total()} mutants, {refuted.total()} refuted, {harmless.total()} accepted and run right"
    print(f"{len(plans)} plans: {total}")
    print("\n".join([f"{len(holes)} accepted and wrong when run", *holes]))


if __name__ == "__main__":
    main()
