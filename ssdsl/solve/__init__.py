"""Solvers that see only numbers, and know nothing of plans."""
