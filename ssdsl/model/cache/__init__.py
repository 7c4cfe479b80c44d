"""Captured graphs are kept for the next command, as long as what they were made from is what it was."""
