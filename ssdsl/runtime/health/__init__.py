"""Finds ranks that fail or wait for too long, and ends the run with a report."""
