"""Operators as functions, and the communication in and between them."""
