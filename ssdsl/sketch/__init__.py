"""Sketches: plans that leave something open, and the search for values to fill in."""
