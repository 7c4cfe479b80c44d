"""Finds rows for operators that have none, by experiment (`ssdsl discover`).

An operator is run on small inputs, whole and cut along an axis. If the parts' results, joined or added, equal those of
the whole, forward and backward, the axis may be split. The idea is EasyDist's (2023); here, pieces of several forms are
tried (unequal, interleaved, single positions), and all letters of a signature together.
"""
