"""Rules of operators that have no row, found by experiment.

An operator is run on small inputs, whole and cut along an axis. Where the parts' results, joined or added, are those of
the whole, forward and backward, the axis may be split. The idea is EasyDist's (2023); here, the pieces are unequal,
single and interleaved, and all letters of a signature are tried together.
"""
