"""A program as it lies in its folder: the table for all ranks, the roles' code, the weights and the batches."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import torch

from .batch_file import read_batches
from .initial_state import InitialState
from .table import Table, read_table


@dataclass(frozen=True)
class CompiledProgram:
    """What was compiled. `roles` is the code of each role by its name."""

    table: Table
    roles: dict[str, str]
    weights: InitialState
    batches: list[dict[str, torch.Tensor]]

    @classmethod
    def read(cls, folder: Path, root: Path | None = None) -> "CompiledProgram":
        """The program that `ssdsl compile` wrote; weights are mapped, or made later. Raises OSError for a lack, and
        EngineError for a program of another version.

        What evaluates lies in a folder inside of `root`, where the weights and batches are.
        """
        root = folder if root is None else root
        table = read_table((folder / "program.json").read_text())
        roles = {r.name: (folder / f"role_{r.name}.py").read_text() for r in table.roles}
        return cls(table, roles, InitialState.read(root), read_batches(root))

    @classmethod
    def of(
        cls, texts: Mapping[str, str], weights: InitialState, batches: list[dict[str, torch.Tensor]]
    ) -> "CompiledProgram":
        """A program of generated files, by name, that lie in no folder."""
        table = read_table(texts["program.json"])
        return cls(table, {r.name: texts[f"role_{r.name}.py"] for r in table.roles}, weights, batches)

    def code(self, role: str) -> Any:
        """The module of a role, made anew for each rank: the groups that it names are the loading rank's."""
        module = ModuleType(f"role_{role}")
        exec(_compiled(self.roles[role], f"role_{role}.py"), vars(module))
        return module


@lru_cache(maxsize=64)
def _compiled(text: str, file: str) -> CodeType:
    """The code of a file that imports the runtime, the package around this one, by whatever name it has here."""
    runtime = __package__.rpartition(".")[0]
    return compile(text.replace("from runtime import", f"from {runtime} import", 1), file, "exec")
