"""Measured costs: files of times, and profiles of machines."""
