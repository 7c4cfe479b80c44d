"""Measures the steps of a run: the time of each line, and memory."""
