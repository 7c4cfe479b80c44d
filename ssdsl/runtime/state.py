"""What a program starts from: weights, buffers and constants, from a file or made as recipes say."""

from collections.abc import Mapping
from pathlib import Path

import torch

from .piece import Piece
from .recipe import Recipes, read_recipes, write_recipes

WEIGHTS = "weights.pt"
RECIPES = "weights.json"


class State:
    """Tensors by name: those that are there, whole, and those that are made where they are needed."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], recipes: Recipes | None = None) -> None:
        self.tensors, self.recipes = tensors, recipes

    @classmethod
    def read(cls, folder: Path) -> "State":
        """The state in a program's folder; tensors are mapped, not read. Raises OSError for a missing file."""
        tensors = torch.load(folder / WEIGHTS, mmap=True, weights_only=True)
        has_recipes = (folder / RECIPES).exists()
        return cls(tensors, read_recipes(folder / RECIPES) if has_recipes else None)

    def write(self, folder: Path) -> None:
        """Writes what `read` reads."""
        torch.save(dict(self.tensors), folder / WEIGHTS)
        if self.recipes is not None:
            write_recipes(self.recipes, folder / RECIPES)

    def copy(self) -> "State":
        """The same state, to write to."""
        return State({n: t.clone() for n, t in self.tensors.items()}, self.recipes)

    def __contains__(self, name: str) -> bool:
        return name in self.tensors or (self.recipes is not None and name in self.recipes.weights)

    def __getitem__(self, name: str) -> torch.Tensor:
        """A tensor, whole."""
        if name in self.tensors or self.recipes is None:
            return self.tensors[name]
        return self.recipes.whole(name)

    def part(self, piece: Piece) -> torch.Tensor:
        """A rank's part of a tensor."""
        if piece.name in self.tensors or self.recipes is None:
            return piece.of(self.tensors[piece.name])
        return self.recipes.part(piece.name, piece.places())
