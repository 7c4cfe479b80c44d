"""Asks torch for facts about the calls of a graph when it is captured; later stages need not ask it again."""
