"""Solvers: they see numbers only, and know nothing of plans."""
