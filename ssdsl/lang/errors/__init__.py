"""Diagnostics of a plan's file and of its syntax: E01xx."""
