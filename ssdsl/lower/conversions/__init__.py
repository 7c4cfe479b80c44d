"""Conversions: they bring a value from the layout in which it is made to those in which it is needed."""
