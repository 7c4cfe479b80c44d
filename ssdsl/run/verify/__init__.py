"""Compares a run of a program with a single device, number by number."""
