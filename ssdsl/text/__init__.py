"""Spans of a text, diagnostics about them, and their rendering."""
