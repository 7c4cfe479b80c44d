"""Published models at their published sizes: each is captured without numbers, and proved under shipped plans.

`configs` has the `config.json` of each, as its users have it; `sources` says whose they are, `run` prints the table.
"""
