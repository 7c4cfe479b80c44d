"""Measures the steps of a run: the time of each source line, and memory."""
