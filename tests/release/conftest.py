"""`make release` runs the folders `smoke` and `extras` beside an installed package, outside this tree."""

collect_ignore = ["smoke", "extras"]
