"""Benchmarks of the compiler and of the programs it writes, side by side with what one would use instead."""
