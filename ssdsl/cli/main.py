"""The entry point: runs a command, and turns its outcome into an exit status.

0: success. 1: the plan (or the model) is wrong, does not fit the cluster, or does not compute what a single device
does. 2: wrong usage. 3: a bug of ssdsl. 75: a signal asked the run to stop, and it has saved. 130: Ctrl-C. 141: the
reader of the output has closed it.
"""

import os
import sys
import warnings

from ssdsl.cli.app import app
from ssdsl.cli.terminal import diagnostics_as_json, report_bug, show_diagnostics
from ssdsl.interrupts import note_interrupts, was_interrupted
from ssdsl.text.diagnostic import PlanError

WRONG, BUG, INTERRUPTED, PIPE = 1, 3, 130, 141


def main() -> None:
    """Runs the command of `sys.argv`; does not return."""
    diagnostics_as_json(False)
    note_interrupts()
    warnings.filterwarnings("ignore", "Failed to initialize NumPy")  # torch's; nothing here needs it
    try:
        try:
            app(prog_name="ssdsl")
        except PlanError as error:
            show_diagnostics(error.diagnostics)
            sys.exit(WRONG)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        _stop_writing()
    except SystemExit as stop:
        if isinstance(stop.__context__, BrokenPipeError):  # libraries make it a status of 1
            _stop_writing()
        raise
    except Exception as error:
        if was_interrupted():
            sys.exit(INTERRUPTED)
        from ssdsl.run.out_of_resources import lack_of

        if (lack := lack_of(error)) is not None:
            show_diagnostics([lack])
            sys.exit(WRONG)
        report_bug(error)
        sys.exit(BUG)


def _stop_writing() -> None:
    """Exits after the reader of the output has closed it, as `head` does."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(PIPE)
