"""Starts ranks, finds those that fail or wait for too long, and ends the run with a report."""
