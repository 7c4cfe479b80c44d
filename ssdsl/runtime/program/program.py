"""A compiled program in its folder: the table for all ranks, the roles' code, the weights and the batches."""

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
    """A compiled program. `roles` maps the name of each role to its code."""

    table: Table
    roles: dict[str, str]
    weights: InitialState
    batches: list[dict[str, torch.Tensor]]

    @classmethod
    def read(cls, folder: Path, root: Path | None = None) -> "CompiledProgram":
        """Reads a program that `ssdsl compile` wrote; weights are memory-mapped, or computed later. Raises OSError if a
        file is missing, and EngineError for a program of another version.

        An evaluation program is in a subfolder of `root`, where the weights and batches are.
        """
        root = folder if root is None else root
        table = read_table((folder / "program.json").read_text())
        roles = {r.name: (folder / f"role_{r.name}.py").read_text() for r in table.roles}
        return cls(table, roles, InitialState.read(root), read_batches(root))

    @classmethod
    def of(
        cls, texts: Mapping[str, str], weights: InitialState, batches: list[dict[str, torch.Tensor]]
    ) -> "CompiledProgram":
        """A program of generated files, by name, that are in memory only."""
        table = read_table(texts["program.json"])
        return cls(table, {r.name: texts[f"role_{r.name}.py"] for r in table.roles}, weights, batches)

    def code(self, role: str) -> Any:
        """The module of a role, created anew for each rank: its process groups are those of the rank that loads it."""
        module = ModuleType(f"role_{role}")
        exec(_compiled(self.roles[role], f"role_{role}.py"), vars(module))
        return module


@lru_cache(maxsize=64)
def _compiled(text: str, file: str) -> CodeType:
    """Compiles a file that imports the runtime (the package around this module), whatever its name is here."""
    runtime = __package__.rpartition(".")[0]
    return compile(text.replace("from runtime import", f"from {runtime} import", 1), file, "exec")
