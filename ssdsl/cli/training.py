"""Compile a plan, launch its program and return what it measured: the common part of `run` and `verify`."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ssdsl.cli.pipeline import Loaded
from ssdsl.cli.terminal import talk
from ssdsl.text.diagnostic import PlanError

if TYPE_CHECKING:
    from ssdsl.compile import Compiled
    from ssdsl.run.launch import Training
    from ssdsl.run.result import RunResult


def train(
    loaded: Loaded, compiled: "Compiled", training: "Training", folder: Path, processes: int | None, dump: bool
) -> "RunResult":
    """Write the program into `folder`, start it and wait for its results, which are there as well."""
    from ssdsl.model.check_capture import check_capture
    from ssdsl.run.launch import launch

    devices = compiled.plan.devices
    _check(loaded, compiled, processes)
    check_capture(loaded.model, loaded.graph)
    write(loaded, compiled, folder / "program")
    out = folder / "results"
    return launch(folder / "program", training, processes=devices, out=out, dump=dump, console=talk)


def write(loaded: Loaded, compiled: "Compiled", folder: Path) -> None:
    """Write the program; raises PlanError where the folder is another's or cannot be written."""
    from ssdsl.codegen.write import write_program
    from ssdsl.run.errors import FolderInUse, FolderUnwritable

    try:
        write_program(compiled.schedule, loaded.model, folder, compiled.source)
    except FileExistsError as error:
        raise PlanError(FolderInUse(None, str(folder))) from error
    except OSError as error:
        raise PlanError(FolderUnwritable(None, str(folder), (error.strerror or str(error)).lower())) from error


def _check(loaded: Loaded, compiled: "Compiled", processes: int | None) -> None:
    """Raise where there is nothing to train on, or fewer processes than devices."""
    from ssdsl.run.errors import ModelWithoutNumbers, TooFewProcesses

    plan = compiled.plan
    if loaded.model.is_meta:
        raise PlanError(ModelWithoutNumbers(None, loaded.model.name))
    allowed = processes or max(16, 2 * (os.cpu_count() or 1))
    if plan.devices > allowed:
        raise PlanError(TooFewProcesses(plan.meshes[-1].span, plan.devices, allowed))


@contextmanager
def workplace(out: str | None) -> Iterator[Path]:
    """The folder to keep, or one that is gone afterwards."""
    if out is not None:
        yield Path(out).resolve()
        return
    with tempfile.TemporaryDirectory(prefix="ssdsl-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)
