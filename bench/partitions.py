"""What torch.compile makes of the runs of a program, beside what the simulator says of them: how many kernels a forward
has besides products and attentions, and how many bytes it keeps for backward.

Kernels are counted as torch's scheduler has fused them; a CPU's C++ may have several in one function. The program runs
in this process, on one model and one plan; weights do not count, as they are there anyway.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch._inductor.scheduler import NopKernelSchedulerNode, Scheduler

from bench.contenders import GPT, SWIN, UNET, Plan
from bench.launch import ROOT
from ssdsl.analyse.program_index import ProgramIndex
from ssdsl.cluster.load import load_cluster
from ssdsl.compile import compile_plan
from ssdsl.ir.program import Kernels, Program
from ssdsl.model.load import load
from ssdsl.model.module_to_graph import capture
from ssdsl.run.in_process.run_in_process import program_of, run_in_process
from ssdsl.run.profile.recorded_profile import Lines
from ssdsl.runtime.kernels.compiled import CompiledRun
from ssdsl.runtime.options import Training
from ssdsl.simulate.memory.storages import Storages
from ssdsl.simulate.price.fusion import Fusion, can_fuse

MEGATRON = Plan("examples/megatron.ssp", ("S=1", "T=2", "M=2"))
ALONE = Plan("examples/data_parallel.ssp", ("D=1",))
CASES = ((ALONE, GPT), (MEGATRON, GPT), (ALONE, SWIN), (ALONE, UNET))


class Partition(NamedTuple):
    """The kernels of a run's forward, without products and attentions, and the bytes that it keeps."""

    kernels: int
    saved_bytes: int


def main(arguments: list[str] | None = None) -> int:
    """Prints a table of each plan and model."""
    parser = argparse.ArgumentParser(prog="python -m bench partitions", description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", metavar="TEXT", help="plans and models with this in their names")
    args = parser.parse_args(arguments)
    for plan, spec in CASES:
        if args.only in f"{plan.path} {spec}":
            Console(width=None if sys.stdout.isatty() else 120).print(table(plan, spec))
    return 0


def table(plan: Plan, spec: str) -> Table:
    """The runs of a plan on a model."""
    model = load(spec)
    settings = {name: int(value) for name, value in (setting.split("=") for setting in plan.settings)}
    program = compile_plan(ROOT / plan.path, capture(model), settings, kernels=Kernels.COMPILED).program
    seen: dict[str, Partition] = {}
    with patch.object(CompiledRun, "_compiled", observing(CompiledRun._compiled, seen)):
        run_in_process(program_of(program, model), Training(1))
    result = Table(title=f"{Path(plan.path).stem} {spec}", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("run", "kernels", "simulated", "MB kept", "simulated", "ratio"):
        result.add_column(heading, no_wrap=True, justify="left" if heading == "run" else "right")
    told = dict(predicted(program))
    for name in (name for name in told if name in seen):
        result.add_row(name, *cells(seen[name], told[name]))
    both = [(seen[name], told[name]) for name in told if name in seen]
    total = [Partition(*map(sum, zip(*each, strict=True))) for each in zip(*both, strict=True)]
    result.add_section()
    result.add_row("each once", *cells(*total))
    return result


def cells(seen: Partition, told: Partition) -> Iterator[str]:
    yield from (str(seen.kernels), str(told.kernels))
    yield from (f"{seen.saved_bytes / 1e6:.3f}", f"{told.saved_bytes / 1e6:.3f}")
    yield f"{told.saved_bytes / seen.saved_bytes:.2f}" if seen.saved_bytes else ""


def observing(compiled: Callable[..., Any], seen: dict[str, Partition]) -> Callable[..., Any]:
    """A call of a run's kernels that notes at the first one what it saves for backward, and how many it has."""

    def call(run: CompiledRun, *args: Any) -> Any:
        if run.name in seen or not torch.is_grad_enabled():
            return compiled(run, *args)
        seen[run.name] = Partition(0, 0)
        with torch.no_grad():
            counts: list[int] = []
            with counting(counts):
                compiled(run, *args)
        kept: dict[int, int] = {}
        weights = {a.untyped_storage().data_ptr() for a in args if isinstance(a, torch.Tensor) and a.is_leaf}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            result = compiled(run, *args)
        seen[run.name] = Partition(sum(counts), sum(kept.values()))
        return result

    return call


@contextmanager
def counting(counts: list[int]) -> Iterator[None]:
    """A context that adds the number of fused kernels of each graph that torch compiles."""
    codegen = Scheduler.codegen

    def counted(scheduler: Scheduler) -> None:
        kernels = (n for n in scheduler.nodes if not n.is_extern() and not isinstance(n, NopKernelSchedulerNode))
        counts.append(sum(1 for _ in kernels))
        codegen(scheduler)

    Scheduler.codegen = counted
    try:
        with torch._inductor.config.patch(force_disable_caches=True):
            yield
    finally:
        Scheduler.codegen = codegen


def predicted(program: Program) -> Iterator[tuple[str, Partition]]:
    """Yields each run's name with what the simulator says of it, for equal runs that of the last one."""
    facts = ProgramIndex.on(program, load_cluster("laptop"))
    fusion = Fusion(facts)
    for role in (role for role in program.roles if role.actions):
        names = Lines.of(program, role).names
        for function in program.functions:
            storages = Storages(facts, fusion, function, frozenset(), {}).kernels()
            for number, section in enumerate(function.sections):
                for start, stop in section.compiled:
                    ops = {id(op) for op in section.body[start:stop]}
                    own = [s for s in storages if s.at.section == number and id(s.launch.ops[0]) in ops]
                    fused = [s for s in own if all(can_fuse(facts.operators[op.operator]) for op in s.launch.ops)]
                    saved = {name: size for s in own for name, size in s.saved.items()}
                    name = names.get((function.number, section.body[start]), "")
                    yield name, Partition(len(fused), sum(saved.values()))
