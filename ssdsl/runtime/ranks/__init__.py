"""Ranks: their coordinates in meshes, their groups, and how they exchange tensors and small messages."""
