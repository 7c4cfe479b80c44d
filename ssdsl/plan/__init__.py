"""From a script and a graph to a Plan: which operators are cut, placed, ordered and recomputed."""
