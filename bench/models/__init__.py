"""Families of models, as their authors ship them, under common plans against the single device.

`families` builds those of `transformers` tiny, `nasty` holds models of our own, `plans` the plans; `run` prints the
table.
"""
