"""Checks of functions: the types of their values forward and backward, and their memory."""
