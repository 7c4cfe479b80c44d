"""The terminal: entries of several lines, keys and colours."""
