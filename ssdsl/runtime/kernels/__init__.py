"""Kernels of parts: operators whose split needs more than a slice of their inputs."""
