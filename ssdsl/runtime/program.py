"""A program as it lies in its folder: the table for all ranks, the roles' code, the weights and the batches."""

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import torch

from .batches import read_batches
from .errors import EngineError
from .state import State
from .table import Table
from .version import VERSION


@dataclass(frozen=True)
class Program:
    """What was compiled. `roles` is the code of each role by its name. Raises EngineError for another version."""

    table: Table
    roles: dict[str, str]
    weights: State
    batches: list[dict[str, torch.Tensor]]

    def __post_init__(self) -> None:
        _check_version(self.table)

    @classmethod
    def read(cls, folder: Path, root: Path | None = None) -> "Program":
        """The program that `ssdsl compile` wrote; weights are mapped, or made later. Raises OSError for a lack.

        What evaluates lies in a folder inside of `root`, where the weights and batches are.
        """
        root = folder if root is None else root
        table = json.loads((folder / "program.json").read_text())
        _check_version(table)
        roles = {r["name"]: (folder / f"role_{r['name']}.py").read_text() for r in table["roles"]}
        return cls(table, roles, State.read(root), read_batches(root))

    def code(self, role: str) -> Any:
        """The module of a role, made anew for each rank: the groups that it names are the loading rank's."""
        module = ModuleType(f"role_{role}")
        exec(_compiled(self.roles[role], f"role_{role}.py"), vars(module))
        return module


def _check_version(table: Table) -> None:
    found = table.get("version", 1)
    if found != VERSION:
        raise EngineError(
            f"the program is of version {found}, and this runtime runs version {VERSION}",
            "give a compiled folder its own `runtime` back, install the same ssdsl on each node, or compile again",
        )


@lru_cache(maxsize=64)
def _compiled(text: str, file: str) -> CodeType:
    """The code of a file that imports the runtime, which is the package of this module by whatever name."""
    return compile(text.replace("from runtime import", f"from {__package__} import", 1), file, "exec")
