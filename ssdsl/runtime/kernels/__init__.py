"""Kernels of parts: operators that need more than a slice of their inputs when they are split."""
