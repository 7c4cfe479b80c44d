"""Tries plans on models under many settings: which are proved, which train as one device does, which are refused."""
