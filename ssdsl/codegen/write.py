"""Writes a program's folder: beside its place first, then renamed, so that no half-written folder is ever seen."""

import json
import shutil
import tempfile
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

import torch

from ssdsl.codegen.role import role_text
from ssdsl.codegen.scope import Scope
from ssdsl.codegen.table import Groups, program_table
from ssdsl.ir.program import Program
from ssdsl.model.source import Model
from ssdsl.runtime.state import State
from ssdsl.text.source import Source

MAIN = '''"""Trains {model} as {plan} says; start it with

    torchrun --nproc-per-node={devices} {folder}/main.py
"""

from runtime.main import main

if __name__ == "__main__":
    main()
'''


def write_program(program: Program, model: Model, folder: Path, source: Source) -> None:
    """The folder of a program: the roles' files, their table, the runtime, the plan, the weights and the batches.

    A model without batches, or without weights and recipes for them, has a program to be read, not run. An existing
    folder is replaced if it holds a program, or is empty; raises FileExistsError otherwise.
    """
    if folder.exists() and any(folder.iterdir()) and not (folder / "program.json").exists():
        raise FileExistsError(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        _fill(beside, program, model, folder, source)
        beside.chmod(0o755)
        if folder.exists():
            shutil.rmtree(folder)
        beside.rename(folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _fill(beside: Path, program: Program, model: Model, folder: Path, source: Source) -> None:
    for name, text in program_files(program).items():
        (beside / name).write_text(text)
    devices = program.plan.devices
    main = MAIN.format(model=program.graph.name, plan=Path(source.name).name, devices=devices, folder=folder.name)
    (beside / "main.py").write_text(main)
    (beside / "plan.ssp").write_text(source.text)
    _copy(files("ssdsl.runtime"), beside / "runtime")
    if model.can_run:
        program_state(program, model).write(beside)
        torch.save(list(model.batches), beside / "inputs.pt")


def _copy(package: Traversable, folder: Path) -> None:
    """The sources of a package and of those inside."""
    folder.mkdir()
    for item in package.iterdir():
        if item.name.endswith(".py"):
            (folder / item.name).write_text(item.read_text())
        elif item.is_dir() and (item / "__init__.py").is_file():
            _copy(item, folder / item.name)


def program_state(program: Program, model: Model) -> State:
    """The weights, buffers and constants by name; those of a model without numbers are recipes."""
    state = program.graph.constants | model.module.state_dict()
    return State({n: t.detach().clone() for n, t in state.items() if not t.is_meta}, model.recipes)


def program_files(program: Program) -> dict[str, str]:
    """The generated files by name: one per role and the table."""
    texts: dict[str, str] = {}
    groups: Groups = {}
    operators = {o.name: o for o in program.graph.operators}
    for role in program.roles:
        if role.actions:
            scope = Scope(program, role, operators)
            texts[f"role_{role.name}.py"] = role_text(scope)
            groups.update(dict.fromkeys((role.submesh.mesh.name, axes) for axes in scope.groups))
    return {**texts, "program.json": json.dumps(program_table(program, groups), indent=1) + "\n"}
