"""The proof that a program computes what a single device computes, without running it.

It shares no code with `ssdsl.lower`: every type is derived again, from the instructions and the graph.
"""
