"""`python -m bench foresight`: what the simulator says, beside what papers and this machine measured.

Constants of a device kind stand in its cluster's file, and none is of one row.
"""
