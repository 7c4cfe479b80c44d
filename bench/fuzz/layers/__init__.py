"""The layers that random models are made of; a reproduction contains the text of those that it uses.

A layer takes activations [batch, seq, hidden] and gives others of that shape, or these and a term of the loss. One that
`reads` also takes tokens [batch, seq], which are inputs. The report has a row for each file.
"""

import inspect

from bench.fuzz.layers import (
    attention,
    dense,
    fields,
    inputs,
    losses,
    mixtures,
    operators,
    pixels,
    space,
    statistics,
    views,
    whole,
)

ROWS = {
    "projections and norms": dense,
    "attention": attention,
    "attention over images and windows": pixels,
    "spatial": space,
    "statistics": statistics,
    "mixtures": mixtures,
    "losses and random": losses,
    "operators": operators,
    "in place and strided": views,
    "computed from inputs": inputs,
    "one number of everything": whole,
    "read at points and indices": fields,
}
CLASSES = {
    name: made
    for module in ROWS.values()
    for name, made in vars(module).items()
    if inspect.isclass(made) and made.__module__ == module.__name__
}
ROW_OF = {name: row for row, module in ROWS.items() for name in CLASSES if hasattr(module, name)}
