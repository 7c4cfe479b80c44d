"""Writes a first plan for a model: its dimensions as comments, statements that prove, and what to try next."""
