"""Warns of statements that say something else than their author may mean."""
