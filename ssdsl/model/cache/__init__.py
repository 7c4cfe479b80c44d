"""The cache of captured graphs: a graph is kept for the next command while nothing that it was made from changes."""
