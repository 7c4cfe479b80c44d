"""The initial state of a program: weights, buffers and constants, from a file or computed by recipes."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch

from ..layout.cut import Piece
from .recipes import Recipes, read_recipes, write_recipes

# files in a program's folder: tensors with numbers, recipes of those without, and the names of tied weights
WEIGHTS = "weights.pt"
RECIPES = "weights.json"
NAMES = "names.json"


class InitialState:
    """Whole tensors by name: some are in memory or a file, the others are computed by recipes when they are needed.

    `names` maps the names of the model's `state_dict`, in order, to the first name of the same tensor.
    """

    def __init__(
        self,
        tensors: Mapping[str, torch.Tensor],
        recipes: Recipes | None = None,
        names: Mapping[str, str] | None = None,
    ) -> None:
        self.tensors, self.recipes, self.names = tensors, recipes, dict(names or {})

    @classmethod
    def read(cls, folder: Path) -> "InitialState":
        """The state in a program's folder; tensors are memory-mapped, not read. Raises OSError if a file is missing."""
        tensors = torch.load(folder / WEIGHTS, mmap=True, weights_only=True)
        has_recipes = (folder / RECIPES).exists()
        names = json.loads((folder / NAMES).read_text())
        return cls(tensors, read_recipes(folder / RECIPES) if has_recipes else None, names)

    def write(self, folder: Path) -> None:
        """Writes the files that `read` reads."""
        torch.save(dict(self.tensors), folder / WEIGHTS)
        (folder / NAMES).write_text(json.dumps(self.names))
        if self.recipes is not None:
            write_recipes(self.recipes, folder / RECIPES)

    def copy(self) -> "InitialState":
        """A copy that may be written to."""
        return InitialState({n: t.clone() for n, t in self.tensors.items()}, self.recipes, self.names)

    @property
    def aliases(self) -> dict[str, str]:
        """Maps the further names of tied weights to the first."""
        return {name: first for name, first in self.names.items() if name != first}

    def __contains__(self, name: str) -> bool:
        return name in self.tensors or (self.recipes is not None and name in self.recipes.weights)

    def __getitem__(self, name: str) -> torch.Tensor:
        """A whole tensor."""
        if name in self.tensors or self.recipes is None:
            return self.tensors[name]
        return self.recipes.whole(name)

    def part(self, piece: Piece, device: torch.device) -> torch.Tensor:
        """A rank's part of a tensor, on a device; it may share the memory of the whole."""
        if piece.name in self.tensors or self.recipes is None:
            return piece.of(self.tensors[piece.name]).to(device)
        return self.recipes.part(piece.name, piece.places(), device)
