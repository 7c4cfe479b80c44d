"""Random models under random plans, in one process, against the single device.

`models` draws a model, `plans` a plan for it, `trial` compiles, trains and compares, `shrink` makes a failure small.
"""
