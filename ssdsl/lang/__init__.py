"""Text to Script: reading, layout of indentation, parsing and formatting of plans."""
