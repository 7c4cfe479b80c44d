"""Writes a program's folder under another name first, then renames it, so that no half-written folder is ever
visible."""

import errno
import os
import shutil
import tempfile
from collections.abc import Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING

from ssdsl.codegen.role import role_file
from ssdsl.codegen.scope import Common, FileScope
from ssdsl.codegen.table import Groups, OperatorsOf, program_table
from ssdsl.ir.program import Program
from ssdsl.runtime.program.codec import to_json_lines
from ssdsl.text.source import Source

if TYPE_CHECKING:
    from ssdsl.model.load.model import Model

EVALUATE = "evaluate"  # the folder of the program that evaluates, in that of the one that trains

MAIN = '''"""Trains {model} as {plan} says; start it with

    torchrun --nproc-per-node={devices} {folder}/main.py
"""

import importlib.util
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
NAME = "ssdsl_program"  # of this folder as a package; `runtime` may be a package of yours

if NAME not in sys.modules:
    sys.path[:] = [path for path in sys.path if Path(path).resolve() != FOLDER]
    spec = importlib.util.spec_from_file_location(NAME, FOLDER / "__init__.py")
    sys.modules[NAME] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[NAME])

if __name__ == "__main__":
    importlib.import_module(NAME + ".runtime.main").main()
'''

PACKAGE = '''"""A program that trains {model} as {plan} says."""
'''
ENGINE = """
from pathlib import Path
from typing import Any

from .runtime.train.folder import Engine, engine_in

__all__ = ["engine"]


def engine(**options: Any) -> Engine:
    \"\"\"The engine of this program; the options are those of `engine_in` in runtime/train/folder.py.\"\"\"
    return engine_in(Path(__file__).parent, **options)
"""


def write_program(
    program: Program, model: "Model | None", folder: Path, source: Source, evaluation: Program | None = None
) -> None:
    """The folder of a program: the roles' files, their table, the runtime, the plan, the weights and the batches.

    The files of the program that evaluates, if there is one, are in `evaluate`; it runs on the same weights. The folder
    is a package. Without a model, or if that has no batches, or neither weights nor recipes, the program can be read
    but not run. An existing folder is replaced if it holds a program, or is empty; raises FileExistsError otherwise,
    and OSError where nothing can be written.
    """
    check_free(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        _fill(beside, program, model, folder, source, evaluation)
        beside.chmod(0o755)
        if folder.exists():
            shutil.rmtree(folder)
        beside.rename(folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def check_free(folder: Path) -> None:
    """Raises FileExistsError for a folder with other files than a program's, and OSError where there can be none."""
    if folder.exists() and any(folder.iterdir()) and not (folder / "program.json").exists():
        raise FileExistsError(folder)
    if folder.parent.is_file():  # where mkdir says that it exists
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))


def _fill(
    beside: Path, program: Program, model: "Model | None", folder: Path, source: Source, evaluation: Program | None
) -> None:
    precision = None if model is None else model.precision
    _write(program_files(program, precision), beside)
    if evaluation is not None:
        _write(program_files(evaluation, precision), beside / EVALUATE)
    words = {"model": program.graph.name, "plan": Path(source.name).name}
    (beside / "main.py").write_text(MAIN.format(**words, devices=program.plan.devices, folder=folder.name))
    (beside / "plan.ssp").write_text(source.text)
    runtime = files("ssdsl.runtime")
    (beside / "__init__.py").write_text(PACKAGE.format(**words) + ENGINE)
    _copy(runtime, beside / "runtime")
    if model is not None and model.can_run:
        from ssdsl.model.capture.initial_state import initial_state  # which loads torch
        from ssdsl.runtime.program.program import write_batches

        initial_state(model, program.graph, None if evaluation is None else evaluation.graph).write(beside)
        write_batches(beside, model.batches)


def _write(texts: Mapping[str, str], folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text)


def _copy(package: Traversable, folder: Path) -> None:
    """Copies the Python files of a package and of the packages in it."""
    folder.mkdir()
    for item in package.iterdir():
        if item.name.endswith(".py"):
            (folder / item.name).write_text(item.read_text())
        elif item.joinpath("__init__.py").is_file():
            _copy(item, folder / item.name)


def program_files(program: Program, precision: str | None = None) -> dict[str, str]:
    """The generated files by name: one per role and the table. `precision` is set for a model in half precision."""
    common, texts = Common(program), dict[str, str]()
    groups: Groups = {}
    operators: OperatorsOf = {}
    for role in program.roles:
        if role.actions:
            scope = FileScope(common, role)
            file = role_file(scope)
            texts[f"role_{role.name}.py"] = file.text
            operators[role.name] = file.operators
            groups.update(dict.fromkeys((role.submesh.mesh.name, axes) for axes in scope.groups))
    table = program_table(common, groups, operators, precision)
    return {**texts, "program.json": to_json_lines(table) + "\n"}
