"""The plans of the table: what a user would try first on a model that is new to him."""

DATA = """
mesh gpus(dp = 2)
split model by batch into dp
assign model to gpus
"""
TENSOR = """
use tensor_parallel: tensor_parallel
mesh gpus(tp = 2)
tensor_parallel(model)
assign model to gpus
"""
PIPELINE = """
use pipeline: one_f_one_b
mesh gpus(pp = 2)
split model by batch into m = 4
let stage = balance(model, 2)
assign stage[s] to gpus[pp = s] for s in 0..2
one_f_one_b(stage, 4)
"""
ZERO = """
mesh gpus(dp = 2)
split model by batch into dp
split model.optimizer by row into dp
split model.grads by row into dp
split model.weights by row into dp
assign model to gpus
"""
UNEVEN = """
use pipeline: one_f_one_b
mesh gpus(pp = 2)
split model by batch into m = [3, 3, 2]
let stage = balance(model, 2)
recompute model
assign stage[s] to gpus[pp = s] for s in 0..2
one_f_one_b(stage, 3)
"""

PLANS = {"data": DATA, "tensor": TENSOR, "1f1b": PIPELINE, "zero3": ZERO}
HARDER = {"uneven": UNEVEN}  # for models of our own: micro-batches of unequal sizes, computed again
