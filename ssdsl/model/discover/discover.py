"""Gives calls of operators without a row a rule that experiments find.

The experiments run in a process of their own (`worker.py`), because an operator may end its process when it is called
with unusual arguments. Rules are cached on disk for later captures (`rule_cache.py`).
"""

import itertools
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ssdsl.model.capture.call import CapturedCall
from ssdsl.model.capture.capture import Capture
from ssdsl.model.capture.overloads import target_of
from ssdsl.model.discover.averages import as_sum, is_cut, multiplied
from ssdsl.model.discover.defined import module_of
from ssdsl.model.discover.experiment import whole
from ssdsl.model.discover.found import FoundRule
from ssdsl.model.discover.rule_cache import cache_rule, cached_rule, key_of
from ssdsl.model.discover.search_path import search_path
from ssdsl.model.discover.trial import LIMIT_S
from ssdsl.model.discover.worker import TrialJob
from ssdsl.model.ops.functions import RowFactor
from ssdsl.model.ops.registry import given, is_random
from ssdsl.record import replace

START_S = 300.0  # limit for a process to start and to import torch, on a busy machine
BUSY = 10  # on a busy machine a call may take so many times its limit, which is of processor time


def discover(capture: Capture, constant: set[str]) -> Capture:
    """The same capture, in which calls of operators without a row have the rule that experiments `found`. Users'
    functions that are means become sums.

    `constant` names the calls that need no rule if the operator is torch's. A call stays without a rule if the module
    that defines its operator is unknown.
    """
    rules = _rules([(c.name, c) for c in capture.calls], capture, constant)
    if not rules:
        return capture
    calls = [replace(c, found=rules.get(c.name)) for c in capture.calls]
    means = {c.name: [*multiplied(c, rules[c.name], capture)] for c in calls if c.name in rules}
    tried = _rules([((name, times), c) for name, found in means.items() for times, c in found], capture, constant)
    sums: dict[str, tuple[RowFactor, FoundRule]] = {}
    for (name, times), rule in tried.items():
        if name not in sums and is_cut(rule, times):
            sums[name] = times, rule
    new = replace(capture, tensors=dict(capture.tensors))
    made = [as_sum(c, *sums[c.name], new) if c.name in sums else [c] for c in calls]
    return replace(new, calls=[*itertools.chain.from_iterable(made)])


def _rules(
    named: Sequence[tuple[Hashable, CapturedCall]], capture: Capture, constant: set[str]
) -> dict[Any, FoundRule]:
    """The rules of those calls that need an experiment, by what they are called here."""
    calls = dict(named)
    jobs = {name: job for name, c in named if (job := _job(c, capture, c.name in constant)) is not None}
    # calls with equal keys share an experiment; a call without a key has its own, under its name
    shared = {name: key_of(calls[name], job.given) for name, job in jobs.items()}
    keys = {name: key or repr(name) for name, key in shared.items()}
    found = {key: before for key in dict.fromkeys(keys.values()) if (before := cached_rule(key)) is not None}
    new = {key: jobs[name] for name, key in keys.items() if key not in found}
    for key, (result, is_final) in zip(new, _results(list(new.values())), strict=True):
        found[key] = result
        if is_final and key in shared.values():  # names of calls mean nothing to other captures
            cache_rule(key, result)
    return {name: replace(found[key], module=jobs[name].module) for name, key in keys.items()}


def _job(call: CapturedCall, capture: Capture, is_constant: bool) -> TrialJob | None:
    """The experiment that a call needs, if any."""
    if given(call) is not None or is_random(call):
        return None
    module = module_of(call.target)
    if module is None or (is_constant and not module):
        return None
    read = tuple(capture.tensors[r] for r in call.refs())
    made = tuple(capture.tensors[o] for o in call.outputs if o in capture.tensors)
    return TrialJob(module, target_of(call.target), call.args, call.kwargs, read, made)


def _results(jobs: list[TrialJob]) -> list[tuple[FoundRule, bool]]:
    """The rule of each job, and whether it is final: another run would give the same.

    If a job ends the process, it is tried once more, with small integers. If it ends the process again, its rule is
    that nothing can be split.
    """
    found: list[tuple[FoundRule, bool]] = []
    while len(found) < len(jobs):
        left = jobs[len(found) :]
        done, ended = _run(left)
        found += done
        if len(done) < len(left):
            found.append(_retried(left[len(done)], ended or "the experiment ended early"))
    return found


def _retried(job: TrialJob, ended: str) -> tuple[FoundRule, bool]:
    """The result of a job that ended the process, from a second run with small integers; else the rule that cuts
    nothing, with the reason why the process `ended`."""
    done, _ = _run([replace(job, careful=True)])
    shapes, made = ([t.shape for t in tensors] for tensors in (job.given, job.made))
    return done[0] if done else (whole(shapes, made, ended), False)


def _run(jobs: Sequence[TrialJob]) -> tuple[list[tuple[FoundRule, bool]], str]:
    """The results of the jobs, up to the one that ended the process, and the reason why it ended, or ""."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results"
        path.touch()
        env = os.environ | {"PYTHONPATH": search_path(), "OMP_NUM_THREADS": "1"}
        try:
            ended = subprocess.run(
                [sys.executable, "-m", "ssdsl.model.discover.worker", str(path)],
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


def _read(lines: Sequence[bytes]) -> Iterator[tuple[FoundRule, bool]]:
    for line in lines:
        try:
            yield msgspec.json.decode(line, type=tuple[FoundRule, bool])
        except ValueError:  # the process ended while it wrote
            return
