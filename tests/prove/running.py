"""Whether a program goes wrong when it runs: its ranks as threads, against a single device."""

from ssdsl.ir.program import Program
from ssdsl.model.alter.run_graph import trained_model
from ssdsl.model.load.model import Model
from ssdsl.run.in_process.run_in_process import RanksFailed, program_of, run_in_process
from ssdsl.run.verify.verify import difference, verify_dumps
from ssdsl.runtime.options import Training

TRAINING = Training(steps=2, optimizer="sgd", lr=0.1)


def runs_wrong(program: Program, model: Model) -> str:
    """How the program goes wrong: it is not written, crashes, hangs, or trains on other numbers. Empty: it does not."""
    try:
        written = program_of(program, model)
    except Exception as error:
        return f"not written: {type(error).__name__}"
    try:
        finished = run_in_process(written, TRAINING)
    except RanksFailed as failure:
        return failure.kind
    except Exception as error:
        return f"crash: {type(error).__name__}"
    try:
        found = difference(
            verify_dumps(trained_model(model, program.plan.altered), TRAINING, finished.losses, finished.dumps)
        )
    except Exception as error:
        return f"nothing to compare: {type(error).__name__}"
    return "numbers" if found is not None else ""
