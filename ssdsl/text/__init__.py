"""Places in a text, and what may be said about them: spans, diagnostics and their rendering."""
