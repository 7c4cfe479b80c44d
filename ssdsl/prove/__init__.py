"""The proof that a program computes what a single device computes, without running it.

Nothing here is shared with `ssdsl.lower`: every type is derived again, from the instructions and the graph.
"""
