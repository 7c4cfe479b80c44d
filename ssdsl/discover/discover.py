"""Experiments with the calls of a model whose operators have no row.

The experiments run in a process of their own (`worker.py`), because an operator may end its process when it is called
with unusual arguments.

The mean of all rows is not the mean of the means of parts. So a function that gives one number, and that experiments
could not cut, is tried once more times a count: the number of rows, or of labels that are not ignored. If the parts add
up then, its row has this count as `mean`.
"""

import os
import pickle
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from ssdsl.discover.experiment import FoundRule, whole
from ssdsl.discover.trial import LIMIT_S
from ssdsl.discover.worker import TrialJob
from ssdsl.model.capture.call import CapturedCall
from ssdsl.model.capture.capture import Capture
from ssdsl.model.capture.overloads import target_of
from ssdsl.model.dims.analyse import stages
from ssdsl.model.dims.signature import parse_signature
from ssdsl.model.ops.defined import module_of
from ssdsl.model.ops.functions import FunctionClass, RowFactor, integers_in
from ssdsl.model.ops.registry import row, row_name
from ssdsl.model.rewrite.calls import with_arguments
from ssdsl.model.rewrite.means import tensors_read
from ssdsl.record import Record, replace
from ssdsl.run.search_path import search_path

START_S = 300.0  # limit for a process to start and to import torch, on a busy machine
BUSY = 10  # on a busy machine a call may take so many times its limit, which is of processor time
MARKS = (-100, -1, 0)  # labels that mostly do not count
MOST_MARKS = 4


class Discovered(Record):
    """An operator by its name in a row, a call of it, the module that defines it, and what experiments showed: its rule
    and, for a function that is a mean, the rows that it is over (`Op.mean`)."""

    name: str
    call: CapturedCall
    module: str
    rule: FoundRule
    mean: str = ""


def unknown_calls(capture: Capture) -> dict[str, list[CapturedCall]]:
    """The calls of operators without a row, by the operators' names; of equal calls the first. Constants need no
    rows."""
    constant = stages(capture)[0]
    found: dict[str, dict[str, CapturedCall]] = {}
    for call in capture.calls:
        if row(call).unknown and call.name not in constant:
            found.setdefault(row_name(call), {}).setdefault(_key(call, capture), call)
    return {name: [*calls.values()] for name, calls in found.items()}


def _key(call: CapturedCall, capture: Capture) -> str:
    """A text that is the same for calls of equal arguments, shapes and dtypes."""
    arguments = re.sub(r"Ref\([^)]*\)", "Ref", repr((call.args, sorted(call.kwargs.items()))))
    read = [capture.tensors[name] for name in call.refs()]
    return repr((call.target.name(), arguments, [(t.shape, t.dtype) for t in read]))


def discover(calls: Sequence[tuple[str, CapturedCall]], capture: Capture) -> list[Discovered]:
    """What experiments show of calls, each with the name of its operator. Users' functions that are means are tried as
    sums, too."""
    jobs = [_job(call, capture) for _, call in calls]
    rules = zip(calls, jobs, _results(jobs), strict=True)
    found = [Discovered(name, call, job.module, rule) for (name, call), job, rule in rules]
    means = ((at, _multiplied(one.call, one.rule, capture)) for at, one in enumerate(found))
    tried = [(at, times, call) for at, each in means for times, call in each]
    for (at, times, _), rule in zip(tried, _results([_job(call, capture) for *_, call in tried]), strict=True):
        if not found[at].mean and _is_cut(rule, times):
            found[at] = replace(found[at], rule=rule, mean=str(times))
    return found


def _job(call: CapturedCall, capture: Capture) -> TrialJob:
    """The experiment with a call."""
    read = tuple(capture.tensors[r] for r in call.refs())
    made = tuple(capture.tensors[o] for o in call.outputs if o in capture.tensors)
    return TrialJob(module_of(call.target) or "", target_of(call.target), call.args, call.kwargs, read, made)


def _results(jobs: list[TrialJob]) -> list[FoundRule]:
    """The rule of each job.

    If a job ends the process, it is tried once more, with small integers. If it ends the process again, its rule is
    that nothing can be split.
    """
    found: list[FoundRule] = []
    while len(found) < len(jobs):
        left = jobs[len(found) :]
        done, ended = _run(left)
        found += done
        if len(done) < len(left):
            found.append(_retried(left[len(done)], ended or "the experiment ended early"))
    return found


def _retried(job: TrialJob, ended: str) -> FoundRule:
    """The result of a job that ended the process, from a second run with small integers; else the rule that cuts
    nothing, with the reason why the process `ended`."""
    done, _ = _run([replace(job, careful=True)])
    shapes, made = ([t.shape for t in tensors] for tensors in (job.given, job.made))
    return done[0] if done else whole(shapes, made, ended)


def _run(jobs: Sequence[TrialJob]) -> tuple[list[FoundRule], str]:
    """The results of the jobs, up to the one that ended the process, and the reason why it ended, or ""."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results"
        path.touch()
        env = os.environ | {"PYTHONPATH": search_path(), "OMP_NUM_THREADS": "1"}
        try:
            ended = subprocess.run(
                [sys.executable, "-m", "ssdsl.discover.worker", str(path)],
                input=pickle.dumps(list(jobs)),
                env=env,
                capture_output=True,
                timeout=START_S + BUSY * LIMIT_S * len(jobs),
                check=False,
            )
            said = ended.stderr.decode(errors="replace").strip().splitlines()
            reason = f"the experiment ended with {said[-1] if said else ended.returncode}" if ended.returncode else ""
        except subprocess.TimeoutExpired:
            reason = "the experiment did not end"
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            reason = f"its arguments cannot be handed to a process: {error}"
        except OSError as error:
            reason = f"no process could be started: {error}"
        lines = path.read_bytes().splitlines()
    return list(_read(lines)), reason


def _read(lines: Sequence[bytes]) -> Iterator[FoundRule]:
    for line in lines:
        try:
            yield msgspec.json.decode(line, type=FoundRule)
        except ValueError:  # the process ended while it wrote
            return


# -- means over rows ---------------------------------------------------------------------------------------------------


def _multiplied(call: CapturedCall, rule: FoundRule, capture: Capture) -> Iterator[tuple[RowFactor, CapturedCall]]:
    """The counts by which a call may have to be multiplied, and it times these; none unless it gives one number that no
    experiment could cut."""
    is_number = len(call.outputs) == 1 and capture.tensors[call.outputs[0]].shape == ()
    if is_number and FunctionClass.of(call.target) is not None and rule.why_whole:
        for times in _counts(call, capture):
            yield times, with_arguments(call, times=str(times))


def _counts(call: CapturedCall, capture: Capture) -> Iterator[RowFactor]:
    """Rows are along the first axes of the first tensor; labels are integers."""
    tensors = {name: capture.tensors[ref] for name, ref in tensors_read(call).items()}
    name, first = next(iter(tensors.items()))
    for count in range(len(first.shape) - 1, 0, -1):
        yield RowFactor(tuple((name, axis) for axis in range(count)))
    marks = [*dict.fromkeys((*integers_in(call.argument("given")), *MARKS))][:MOST_MARKS]
    for name, tensor in tensors.items():
        if tensor.dtype.startswith(("int", "uint")) and tensor.shape:
            yield from (RowFactor(counts=(name, mark)) for mark in marks)


def _is_cut(rule: FoundRule, times: RowFactor) -> bool:
    """Whether a call times a count may be cut, along all axes of the count."""
    axes = parse_signature(rule.signature).inputs[0].axes
    whole = (any(letter.fixed for letter in axes[axis] or ()) for _, axis in times.axes)
    return not rule.why_whole and not any(whole)
