"""Writes a Program as a folder: one readable file per role, a table for the ranks, and the runtime beside them."""
