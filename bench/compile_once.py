"""Compiles one plan in a fresh process: `python bench/compile_once.py CHECKOUT JOB` prints its times as JSON.

`CHECKOUT` is the folder whose `ssdsl` is measured, this one or an older one, and `JOB` the JSON of a `Job`. All that is
known here of the inside of `ssdsl` is in `compile_program` and `captured`, and has to fit both.
"""

import contextlib
import gc
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ssdsl.ir.program import Program
    from ssdsl.model.graph import Graph
    from ssdsl.model.load.model import Model
    from ssdsl.text.source import Source

Times = dict[str, float]
TURNS = 3  # of a second measurement, of which the fastest counts
PASSES = ("plan", "lower", "prove", "write")


@dataclass(frozen=True, slots=True)
class Job:
    """A model, a plan's file with its settings, and the cluster that it is compiled for.

    `more` are other settings for a second measurement in the same process, which begins with all things loaded. Of a
    `candidate` the step is simulated without a proof, in turn with that of the plan before: with the settings `more`,
    and with a word of the text replaced by another one (`edit`).
    """

    model: str
    plan: str
    settings: dict[str, int]
    cluster: str = "a100x1024"
    more: dict[str, int] | None = None
    candidate: bool = False
    edit: tuple[str, str] | None = None


def captured(model: str) -> "tuple[Model, Graph]":
    """A model without numbers, and its graph."""
    from ssdsl.model.load import load

    try:
        from ssdsl.model.module_to_graph import capture
    except ImportError:  # its name before
        from ssdsl.model.trace import capture

    loaded = load(model, meta=True)
    return loaded, capture(loaded)


def compile_program(model: "Model", graph: "Graph", job: Job) -> "Iterator[tuple[str, Program | None]]":
    """The compiler from the plan's text to the program's files, and a simulated step; yields the name of each pass when
    it is done, with the program that there is."""
    from ssdsl.cluster.load import load_cluster
    from ssdsl.codegen.write import write_program
    from ssdsl.collector import paused_collector
    from ssdsl.compile import make_plan
    from ssdsl.lang.read import read_source
    from ssdsl.lower.lower import lower
    from ssdsl.prove.prove import require_proof
    from ssdsl.simulate.simulate import simulate

    cluster, path = load_cluster(job.cluster), Path(job.plan)
    yield "import", None
    with paused_collector():  # as `compile_plan` does
        plan, _ = make_plan(read_source(path), graph, job.settings, path.parent)
        yield "plan", None
        program = lower(plan, cluster)
        yield "lower", program
        require_proof(program)
        yield "prove", program
    with tempfile.TemporaryDirectory() as folder:
        write_program(program, model, Path(folder) / "program", read_source(path))
        yield "write", program
        simulate(program, read_source(path), cluster)
        yield "simulate", program


def measure(job: Job) -> Times:
    """Seconds of the capture and of each pass, peak memory in MB, and how much there was to do; in this process.

    Seconds are those of the processor, which depend least on what else runs on the machine.

    Of the second measurement the keys begin with `more_`: of the first settings again, and of the others.
    """
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    start = time.process_time()
    model, graph = captured(job.model)
    gc.freeze()  # as the command line does
    times = {"capture": time.process_time() - start, "operators": len(graph.operators)}
    passes = compile_program(model, graph, job)
    next(passes)
    held_mb = reset_peak()
    times |= timed(passes)
    times["total"] = sum(times[name] for name in PASSES)
    times |= {"peak_mb": peak_mb(), "own_mb": peak_mb() - held_mb}
    if job.candidate:
        times["candidate"] = next_candidate(graph, job)
    elif job.more is not None:
        for prefix, settings in (("again_", job.settings), ("more_", job.more)) * TURNS:
            passes = compile_program(model, graph, Job(job.model, job.plan, settings, job.cluster))
            next(passes)
            for name, value in timed(passes).items():
                times[prefix + name] = min(value, times.get(prefix + name, value))
    return times


def next_candidate(graph: "Graph", job: Job) -> float:
    """Seconds from another text, or other settings, to a simulated step, where a plan like it was simulated before."""
    from ssdsl.text.source import Source

    plan = Path(job.plan)
    text = plan.read_text()
    changed = Source(str(plan), text.replace(*job.edit) if job.edit else text)
    simulate, found = _simulating(graph, job), list[float]()
    for source, settings in ((Source(str(plan), text), job.settings), (changed, job.more or job.settings)) * TURNS:
        before = time.process_time()
        simulate(source, settings)
        found.append(time.process_time() - before)
    return min(found[1::2])


def _simulating(graph: "Graph", job: Job) -> "Callable[[Source, dict[str, int]], object]":
    """What simulates a plan without a proof: a workspace, or all passes where there is none."""
    from ssdsl.cluster.load import load_cluster
    from ssdsl.collector import paused_collector
    from ssdsl.compile import make_plan
    from ssdsl.lower.lower import lower
    from ssdsl.simulate.simulate import simulate

    cluster, folder = load_cluster(job.cluster), Path(job.plan).parent
    try:
        from ssdsl.workspace import Workspace
    except ImportError:

        def all_again(source: "Source", settings: dict[str, int]) -> object:
            with paused_collector():
                return simulate(lower(make_plan(source, graph, settings, folder)[0], cluster), source, cluster)

        return all_again

    workspace = Workspace(graph, cluster)
    return lambda source, settings: workspace.simulate(workspace.candidate(source, settings, folder), cluster)


def timed(passes: "Iterator[tuple[str, Program | None]]") -> Times:
    """Seconds of each pass, and the number of the program's actions."""
    times: Times = {}
    before = time.process_time()
    for name, program in passes:
        now = time.process_time()
        times[name], before = now - before, now
        if program is not None:
            times["actions"] = sum(len(role.actions) for role in program.roles)
    return times


def reset_peak() -> float:
    """Lower the kernel's mark of the peak to what is held now, and return that; where it cannot, capture counts too."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return peak_mb()


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


if __name__ == "__main__":
    sys.path[0] = sys.argv[1]  # in place of this folder, and before any other checkout
    print(json.dumps(measure(Job(**json.loads(sys.argv[2])))))
