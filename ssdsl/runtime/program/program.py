"""A compiled program in its folder: the table for all ranks, the roles' code, the weights and the batches."""

import linecache
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import torch

from ..kernels.run_pieces import TEXT
from .initial_state import InitialState
from .table import Table, read_table

Batch = dict[str, torch.Tensor]
BATCHES = "inputs.pt"
NARROW = (torch.uint8, torch.int16, torch.uint16, torch.int32)


@dataclass(frozen=True)
class CompiledProgram:
    """A compiled program. `roles` maps the name of each role to its code."""

    table: Table
    roles: dict[str, str]
    weights: InitialState
    batches: list[Batch]

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
    def of(cls, texts: Mapping[str, str], weights: InitialState, batches: list[Batch]) -> "CompiledProgram":
        """A program of generated files, by name, that are in memory only."""
        table = read_table(texts["program.json"])
        return cls(table, {r.name: texts[f"role_{r.name}.py"] for r in table.roles}, weights, batches)

    def code(self, role: str) -> Any:
        """The module of a role, created anew for each rank: its process groups are those of the rank that loads it."""
        module = ModuleType(f"role_{role}")
        vars(module)[TEXT] = self.roles[role]
        exec(_compiled(self.roles[role], f"role_{role}.py"), vars(module))
        return module


@lru_cache(maxsize=64)
def _compiled(text: str, file: str) -> CodeType:
    """Compiles a file that imports the runtime (the package around this module), whatever its name is here. Python
    knows its lines, for tracebacks, and for torch.compile, which calls a function without a file through another one:
    that would have the graphs of all. Where several programs have a file of this name, such as one that trains
    and one that evaluates, it shows no lines, rather than another's."""
    lines = text.splitlines(keepends=True)
    is_shared = file in linecache.cache and linecache.getlines(file) != lines
    linecache.cache[file] = len(text), None, [] if is_shared else lines, file
    runtime = __package__.rpartition(".")[0]
    return compile(text.replace("from runtime import", f"from {runtime} import", 1), file, "exec")


def write_batches(folder: Path, batches: Sequence[Batch]) -> None:
    """Writes the program's batches into its folder. Integers are stored in the smallest dtype that fits, because most
    of a batch are token ids; labels that equal the tokens are stored once with them."""
    dtypes = [{name: tensor.dtype for name, tensor in batch.items()} for batch in batches]
    torch.save({"batches": [_narrowed(batch) for batch in batches], "dtypes": dtypes}, folder / BATCHES)


def read_batches(folder: Path) -> list[Batch]:
    """The batches, in their own dtypes. Raises OSError if the file is missing."""
    kept = torch.load(folder / BATCHES, weights_only=True)
    pairs = zip(kept["batches"], kept["dtypes"], strict=True)
    return [{name: tensor.to(dtypes[name]) for name, tensor in batch.items()} for batch, dtypes in pairs]


def _narrowed(batch: Batch) -> Batch:
    """The batch in small dtypes, with equal tensors as one, of which reading makes two again."""
    found: Batch = {}
    for name, tensor in batch.items():
        equal = (n for n in found if batch[n].dtype == tensor.dtype and torch.equal(batch[n], tensor))
        small = found.get(next(equal, ""), tensor)
        found[name] = _narrow(tensor) if small.dtype == tensor.dtype else small
    return found


def _narrow(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype != torch.int64 or not tensor.numel():
        return tensor
    least, most = (int(x) for x in torch.aminmax(tensor))
    for dtype in NARROW:
        if torch.iinfo(dtype).min <= least and most <= torch.iinfo(dtype).max:
            return tensor.to(dtype)
    return tensor
