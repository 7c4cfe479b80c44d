"""Fits a plan to a graph with other sizes: an evaluation, or a batch of another size."""
