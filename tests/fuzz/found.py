"""What the fuzzer once found wrong, made small: models and plans. Each is equal now, or refused with a reason."""

from dataclasses import dataclass

from bench.fuzz.models import Recipe
from bench.fuzz.trial import SLOW
from ssdsl.cluster.cluster import Cluster


@dataclass(frozen=True, slots=True)
class Found:
    """A model by its recipe, or by its name in found_models.py; a plan, and the code of its refusal if it has one."""

    model: Recipe | str
    plan: str
    optimizer: str = "sgd"
    cluster: Cluster | None = None
    refused: str | None = None


FOUND = {
    "detached": Found(
        Recipe(
            5,
            3,
            8,
            6,
            "linear",
            (("Detached", (8, False)), ("Tracked", (8,)), ("Plain", (8, True)), ("BareMlp", (8, 32))),
            "squares",
            1,
        ),
        """\
mesh gpus(tp = 2)
assign model to gpus
split model.weights by row into tp
""",
        optimizer="adamw",
    ),
    "batch_norm_of_two_views": Found(  # each part of its statistics takes the first view's, then the second one's
        "batch_norm_of_two_views",
        """\
mesh gpus(pp = 2)
let stage = balance(model, 2)
split model by ffn into n = 2, m = 2
assign stage[s] to gpus[pp = s] for s in 0..2
""",
    ),
    "batch_norm_twice": Found(
        "batch_norm_twice",
        """\
mesh gpus(dp = 2)
split model by batch into dp
assign model to gpus
""",
    ),
    "both_contrast_space_and_time": Found(
        Recipe(8, 6, 12, 10, "embedding", (("Contrast", (12,)),), "tied", 1),
        """\
mesh gpus(cp = 2)
split model["head"] by batch into cp
split model by batch into m = 2
assign model to gpus
""",
    ),
    "both_gates": Found(
        Recipe(6, 2, 6, 12, "linear", (("Gates", (6, 4)),), "classes", 2, precision="float32"),
        """\
mesh gpus(cp = 1)
split model by "front.weight.0" into n = 2
assign model to gpus
""",
    ),
    "both_time_and_space": Found(
        Recipe(
            8,
            4,
            8,
            10,
            "embedding",
            (("Mlp", (8, 16, True, "gelu")), ("OverBatch", (8,))),
            "tied",
            2,
            precision="float32",
        ),
        """\
mesh gpus(dp = 2, tp = 2)
split model by batch into c = 2
split model by batch into dp, tp
assign model to gpus
""",
    ),
    "both_time_batch2": Found(
        Recipe(2, 2, 8, 10, "linear", (("OverBatch", (8,)),), "squares", 1, precision="float32"),
        """\
mesh gpus(pp = 1)
split model by batch into c = 2
assign model to gpus
""",
    ),
    "buffer_changed_in_parts": Found(
        "buffer_changed_in_parts",
        """\
mesh gpus(pp = 2)
split model by batch into m = [3, 3, 2]
let stage = balance(model, 2)
recompute model
assign stage[s] to gpus[pp = s] for s in 0..2
""",
    ),
    "buffer_in_parts": Found(
        Recipe(4, 4, 12, 12, "linear", (("Grouped", (12, 6, 2, 4, "causal")), ("Tracked", (12,))), "squares", 1),
        """\
mesh gpus(tp = 1)
split model by batch into c = 2
split model by ffn into m = [7, 2, 3]
order model.add.bwd[c = 0] -> model.fwd[c = 1]
assign model to gpus
""",
    ),
    "buffer_of_merged_axis": Found(
        "buffer_of_merged_axis",
        """\
mesh gpus(tp = 2)
split model by batch into tp
assign model to gpus
""",
    ),
    "buffer_space": Found(
        Recipe(8, 3, 4, 6, "embedding", (("Tracked", (4,)),), "squares", 1),
        """\
mesh gpus(dp = 2)
split model by hidden into dp
assign model to gpus
""",
    ),
    "buffer_split_as_its_parts": Found(
        "buffer_split_as_its_parts",
        """\
mesh gpus(tp = 2)
split model by hidden into n = 2
split model by "hidden.1" into tp
assign model to gpus
""",
    ),
    "buffer_strided": Found(
        Recipe(2, 2, 8, 2, "embedding", (("Tracked", (8,)),), "squares", 1),
        """\
mesh gpus(cp = 2)
split model.add by hidden into cp, m = 2
assign model to gpus
""",
    ),
    "buffer_time": Found(
        Recipe(8, 6, 12, 10, "linear", (("Plain", (12, True)), ("Tracked", (12,))), "squares", 1),
        """\
mesh g0(tp = 1)
split model by "h.0.lin.weight.0" into n = 4, m = 3
assign model to g0
""",
    ),
    "buffers_from_inputs": Found(
        "buffers_from_inputs",
        """\
mesh gpus(pp = 2)
split model by batch into m = [3, 3, 2]
let stage = balance(model, 2)
recompute model
assign stage[s] to gpus[pp = s] for s in 0..2
""",
    ),
    "cancelled_gradient": Found(  # it is zero in the plan's order, which is no gradient that is missing
        "cancelled_gradient",
        """\
mesh gpus(dp = 2)
split model by batch into dp
assign model to gpus
""",
    ),
    "causal_parts_out_of_order": Found(
        "causal_parts_out_of_order",
        """\
mesh g0(tp = 1)
split model by seq into ep parts [[1, 0], [4, 3, 5], [2]]
assign model to g0
""",
        refused="E0408",
    ),
    "class_weights_cut_in_time_and_space": Found(
        Recipe(2, 2, 8, 4, "codes", (("ByHand", (8, (0, 1))),), "weighted", 1),
        """\
mesh gpus(tp = 2)
split model by vocab into c = 2
split model by vocab into tp
assign model["h.0"] to gpus[tp = 1]
assign model - model["h.0"] to gpus
""",
    ),
    "classes_in_time": Found(
        "classes_in_time",
        """\
mesh gpus(dp = 2)
split model by batch into m = 2
split model by classes into n = [1, 5]
assign model to gpus
order model.fwd[m = 1, n = 1] -> model.bwd[m = 0, n = 0]
""",
    ),
    "cut_twice_where_a_like_call_is_not": Found(  # equal calls of two directions, one of them with other factors now
        "cut_twice_where_a_like_call_is_not",
        """\
mesh gpus(cp = 1)
split model.mul by "rnn.weight_ih_l0.0_inner1" into c = 2, m = [2, 1]
assign model to gpus
""",
    ),
    "data_operator_of_two_results": Found(
        "data_operator_of_two_results",
        """\
mesh gpus(dp = 2)
split model by batch into dp
assign model to gpus
""",
    ),
    "detached_between_stages_0": Found(
        Recipe(2, 2, 8, 10, "linear", (("Detached", (8, True)),), "squares", 1),
        """\
mesh gpus(pp = 2)
let stage = balance(model, 2)
split model by "front.weight.0" into c = 2
split model by target into n = [2, 6]
assign stage[0] to gpus[pp = 0]
assign stage[1] to gpus[pp = 1]
""",
    ),
    "detached_between_stages_1": Found(
        Recipe(2, 2, 8, 2, "linear", (("Detached", (8, True)), ("Position", (2, 8))), "squares", 1),
        """\
mesh gpus(pp = 2)
let stage = [model - (model["front"] | model["h.1"] | model["head"]), model["front"] | model["h.1"] | model["head"]]
split model by "front.weight.0" into m = 2
assign stage[0] to gpus[pp = 0]
assign stage[1] to gpus[pp = 1]
""",
    ),
    "drawn_among_split_classes": Found(
        "drawn_among_split_classes",
        """\
mesh gpus(tp = 2)
split model by vocab into tp
assign model to gpus
""",
    ),
    "draws_of_what_learns": Found(
        "draws_of_what_learns",
        """\
mesh gpus(dp = 2)
split model by seq into dp
split model by batch into m = 2
assign model to gpus
""",
        optimizer="adamw",
    ),
    "dropped_whole_and_empty": Found(
        "dropped_whole_and_empty",
        """\
mesh gpus(pp = 2)
split model by batch into m = [3, 3, 2]
let stage = balance(model, 2)
recompute model
assign stage[s] to gpus[pp = s] for s in 0..2
""",
    ),
    "embedding_bag": Found(
        "embedding_bag",
        """\
mesh gpus(tp = 2)
split model by hidden into tp
assign model to gpus
""",
        optimizer="adamw",
    ),
    "gradient_of_a_merged_axis": Found(
        Recipe(2, 4, 8, 2, "pixels", (), "squares", 1),
        """\
mesh g0(dp = 1, tp = 1)
mesh g1(ep = 2)
mesh g2(tp = 1, ep = 2)
let stage = balance(model, 3)
split model by height into ep
assign stage[0] to g0
assign stage[1] to g1
assign stage[2] to g2
""",
        cluster=SLOW,
    ),
    "gradient_of_unequal_parts": Found(
        Recipe(2, 2, 8, 2, "linear", (), "squares", 1),
        """\
mesh g0(cp = 1)
mesh g1(cp = 1)
mesh g2(ep = 2)
let stage = balance(model, 3)
split model by batch into ep, n = [1, 1] where possible
assign stage[0] to g0
assign stage[1] to g1
assign stage[2] to g2
""",
        cluster=SLOW,
    ),
    "instance_norm_statistics": Found(
        "instance_norm_statistics",
        """\
mesh gpus(tp = 2)
split model by length into tp
split model by batch into m = 4
assign model to gpus
""",
    ),
    "keyerror_axis_and_time": Found(
        Recipe(
            8,
            6,
            12,
            12,
            "linear",
            (("Grouped", (12, 4, 2, 6, "causal")), ("Aux", (12,))),
            "squares",
            1,
            precision="float32",
        ),
        """\
mesh g0(dp = 2)
mesh g1(ep = 1)
mesh g2(ep = 1)
let stage = [model - (model["h.1"] | model["h.1"] | model["h.1"] | model["h.0"]), model["h.1"] | model["h.1"] | model["h.1"], model["h.0"]]
split model by batch into c = 2
split (model - model["h"]) by batch into n = 2
split model by batch into dp
assign stage[0] to g0
assign stage[1] to g1
assign stage[2] to g2
""",  # noqa: E501
    ),
    "keys_cut_within_slices": Found(
        Recipe(2, 6, 4, 6, "linear", (("Grouped", (4, 2, 2, 6, "causal")),), "squares", 1),
        """\
mesh gpus(cp = 2)
split model by seq into t = [1, 1, 4]
split model by seq.keys into cp
assign model to gpus
""",
        refused="E0401",
    ),
    "linear_resampling_in_double": Found(
        Recipe(2, 2, 6, 2, "linear", (("Image", (4, "maximum")),), "squares", 1),
        """\
mesh gpus(tp = 2)
split model by width into tp where possible
assign model to gpus
""",
    ),
    "loss_of_cancelling_scalars": Found(
        Recipe(9, 4, 8, 6, "linear", (("BareMlp", (8, 8)), ("BareMlp", (8, 32))), "classes", 1, "number"),
        """\
mesh gpus(tp = 1)
split model by batch into m = [4, 3, 2]
assign model to gpus
""",
    ),
    "made_in_parts_read_whole": Found(  # the same axis of a buffer, as it is read and as it is made
        "made_in_parts_read_whole",
        """\
mesh gpus(cp = 2)
split model.einsum by one_hot.out into cp, m = [1, 4]
assign model to gpus
""",
    ),
    "merged_axis_beside_a_plain_one": Found(
        "merged_axis_beside_a_plain_one",
        """\
mesh gpus(pp = 2, cp = 2)
let stage = [model - (model["front"] | model["h.0"] | model["h.1"] | model["head"]), model["front"] | model["h.0"] | model["h.1"] | model["head"]]
assign stage[0] to gpus[pp = 0]
assign stage[1] to gpus[pp = 1]
""",  # noqa: E501
        cluster=SLOW,
    ),
    "normal_of_addends": Found(
        "normal_of_addends",
        """\
mesh gpus(tp = 1)
split model by "hidden.1" into n = 2
assign model to gpus
""",
    ),
    "number_in_single": Found(
        "number_in_single",
        """\
mesh gpus(dp = 2)
split model by batch into dp
assign model to gpus
""",
        optimizer="adamw",
    ),
    "other_parts_of_one_name": Found(
        Recipe(2, 4, 12, 2, "linear", (("Grouped", (12, 4, 1, 4, "causal")),), "squares", 1),
        """\
mesh gpus(cp = 1)
split model["h.0.q"] by seq into m = 3
split model.reshape by seq into m = 2
assign model to gpus
""",
    ),
    "part_of_a_bias": Found(
        "part_of_a_bias",
        """\
mesh gpus(tp = 2)

split model by hidden into tp where possible
split model by head_dim into m = 3 where possible
assign model to gpus
""",
        optimizer="adamw",
    ),
    "parts_read_at_once": Found(
        "parts_read_at_once",
        """\
mesh gpus(pp = 2)
split model["front"] by batch into m = 4
assign model["front"] to gpus[pp = 0]
assign model - model["front"] to gpus[pp = 1]
""",
    ),
    "penalty_recomputed_in_halves": Found(
        Recipe(2, 2, 12, 2, "linear", (), "squares", 1, "penalty"),
        """\
mesh gpus(dp = 2)
split model by batch into dp
recompute model
order model.dgrad -> model.wgrad
assign model to gpus
""",
    ),
    "queue_of_keys": Found(  # its parts along the width are those of its new value, along the rows it has none
        "queue_of_keys",
        """\
mesh gpus(dp = 2, tp = 2)
split model by batch into dp
split model by "query.weight.0" into tp
assign model to gpus
""",
    ),
    "recompute_in_halves_in_place": Found(
        Recipe(2, 2, 4, 2, "embedding", (("BareMlp", (4, 8)),), "squares", 1),
        """\
mesh gpus(dp = 2, pp = 2)
let stage = balance(model, 2)
split model by batch into c = 1
split model by ffn into dp
assign stage[0] to gpus[pp = 0]
assign stage[1] to gpus[pp = 1]
recompute model
let part = stage
order by clock for s in 0..2, m0 in 0..1:
    part[s].wgrad[c = m0] at 1 * m0 + 4 - s + 3
""",
    ),
    "recompute_in_place": Found(
        Recipe(4, 2, 8, 10, "linear", (("BareMlp", (8, 16)), ("Gates", (8, 2))), "pooled", 1),
        """\
mesh gpus(tp = 2)
split model by ffn into tp
assign model to gpus
recompute model
""",
    ),
    "recurrent_time": Found(
        Recipe(6, 4, 8, 6, "embedding", (("Recurrent", (8, "LSTM")),), "squares", 1, precision="float32"),
        """\
mesh gpus(dp = 1, tp = 1)
split model by hidden into m = 2
assign model["h.0"] to gpus[dp = 0]
assign model - model["h.0"] to gpus
""",
    ),
    "recurrent_time_on_other_mesh": Found(
        Recipe(2, 2, 6, 2, "embedding", (("Recurrent", (6, "LSTM")),), "squares", 1, precision="float32"),
        """\
mesh g0(tp = 1)
mesh g1(ep = 2)
let stage = balance(model, 2)
split model by hidden into ep
assign stage[0] to g0
assign stage[1] to g1
""",
    ),
    "region_cut_again": Found(
        "region_cut_again",
        """\
mesh gpus(dp = 1)
split model.linear by batch into m = [1, 5]
split model by batch into m = 2, n = 3 where possible
assign model to gpus
""",
    ),
    "repeated_rows": Found(
        "repeated_rows",
        """\
mesh gpus(pp = 2)
split model by batch into m = 4
let stage = balance(model, 2)
assign stage[s] to gpus[pp = s] for s in 0..2
for m in 0..3:
    order stage[0].bwd[m = m] -> stage[0].fwd[m = m + 1]
""",
    ),
    "runs_of_gathered_weights": Found(
        "runs_of_gathered_weights",
        """\
mesh gpus(tp = 2)
split model by hidden into tp parts [[2, 1], [3, 0]]
assign model to gpus
split model.weights by row into tp
""",
    ),
    "shared_gather_in_time": Found(
        Recipe(2, 6, 12, 2, "linear", (("Routed", (12, 6, 2)),), "squares", 1, "ratio"),
        """\
mesh gpus(pp = 2, cp = 2)
let stage = balance(model, 2)
split model by target into cp
split (model - model["h"]) by seq into n = 3
assign stage[0] to gpus[pp = 0]
assign stage[1] to gpus[pp = 1]
""",
    ),
    "shared_gather_of_parts_in_time": Found(
        Recipe(4, 2, 6, 2, "linear", (("ByHand", (6, (1, 2))), ("Gates", (6, 2))), "squares", 1),
        """\
mesh gpus(tp = 2)
split model by "h.1.weight.0" into tp
split model["h.0"] by batch into tp
split model by batch into n = 2
assign model to gpus
""",
    ),
    "shares_without_gradient": Found(
        "shares_without_gradient",
        """\
mesh gpus(pp = 2, dp = 2)

split model by height into m = 2
split model.div by width into dp

assign model["front"] to gpus[pp = 0]
assign model - model["front"] to gpus[pp = 1]
""",
        cluster=SLOW,
    ),
    "slices_inside_unequal_parts": Found(
        Recipe(9, 2, 8, 2, "embedding", (), "tied", 1),
        """\
mesh gpus(tp = 2)
split model by seq into m = 2 where possible
split model by batch into tp = [2, 7]
assign model to gpus
""",
        refused="E0406",
    ),
    "slices_of_slices_of_keys": Found(
        "slices_of_slices_of_keys",
        """\
mesh g0(cp = 1)
split model by seq into c = 3, n = 2
assign model to g0
""",
    ),
    "spectral_norm_recomputed": Found(
        "spectral_norm_recomputed",
        """\
mesh gpus(pp = 2)
split model by batch into m = [3, 3, 2]
let stage = balance(model, 2)
recompute model
assign stage[s] to gpus[pp = s] for s in 0..2
""",
    ),
    "statistics_read_before": Found(
        "statistics_read_before",
        """\
mesh gpus(dp = 2)
split model by batch into dp
recompute model
assign model to gpus
""",
    ),
    "tied_shares": Found(
        "tied_shares",
        """\
mesh gpus(pp = 2, dp = 2, cp = 2)
split model by seq into dp where possible
assign model["front"] to gpus[pp = 0]
assign model - model["front"] to gpus[pp = 1]
""",
        cluster=SLOW,
    ),
    "two_slices": Found(
        "two_slices",
        """\
mesh gpus(pp = 1)
split model["h.0.q"] by batch into m = 2
split model by batch into n = 2
assign model to gpus
""",
    ),
    "two_terms_no_stage": Found(
        Recipe(4, 2, 4, 8, "linear", (("Aux", (4,)),), "squares", 1),
        """\
mesh g0(cp = 1)
split model by batch into n = 2
split model["h.0"] by batch into m = 2
assign model to g0
""",
    ),
    "unequal_micro_batches_of_a_merged_axis": Found(
        "unequal_micro_batches_of_a_merged_axis",
        """\
mesh g0(dp = 2)
mesh g1(dp = 2)
let stage = balance(model, 2)
split stage[0] by batch into m = [3, 1]
assign stage[0] to g0
assign stage[1] to g1
""",
        cluster=SLOW,
    ),
    "unequal_parts_sent": Found(
        "unequal_parts_sent",
        """\
mesh gpus(dp = 2, tp = 2, pp = 2)
let stage = balance(model, 2)
split model by width into tp = [1, 2]
split model by height into dp = [2, 1]
assign stage[0] to gpus[pp = 0]
assign stage[1] to gpus[pp = 1]
""",
        refused="E0406",
    ),
    "unequal_parts_of_data": Found(
        Recipe(5, 8, 6, 8, "embedding", (("Bag", (6, 8, "max", "pairs")),), "squares", 1),
        """\
mesh gpus(tp = 2, cp = 2, pp = 2)
let stage = balance(model, 2)
split model by seq into tp = [7, 1]
split stage[0] by batch into cp = [1, 4]
assign stage[0] to gpus[pp = 0]
assign stage[1] to gpus[pp = 1]
""",
        refused="E0406",
    ),
    "unequal_parts_to_another_dimension": Found(
        Recipe(2, 2, 6, 2, "linear", (("Batched", (6,)), ("Aux", (6,)), ("BareMlp", (6, 12))), "squares", 1),
        """\
mesh gpus(tp = 2)
split model["h.0"] by hidden into c = 2, tp = [1, 2]
split model["h.1.router"] by batch into tp
assign model to gpus
""",
    ),
    "uneven_embedding": Found(
        Recipe(2, 6, 12, 8, "embedding", (), "squares", 1, precision="float32"),
        """\
mesh gpus(tp = 1)
split model by vocab into n = [2, 5, 1]
assign model to gpus
""",
    ),
    "uneven_parts_sent_to_split": Found(
        Recipe(9, 6, 6, 6, "embedding", (("Detached", (6, False)), ("Norm", (6,))), "tied", 1, "penalties"),
        """\
mesh gpus(pp = 2, cp = 3, tp = 1)
let stage = [model - (model["h.0"] | model["h.1"] | model["head"]), model["h.0"] | model["h.1"] | model["head"]]
split model["h.0"] by batch into n = 3, cp
split model["front"] by batch into c = [2, 6, 1]
assign stage[0] to gpus[pp = 0]
assign stage[1] to gpus[pp = 1]
""",
    ),
    "uneven_reshape_merge": Found(
        Recipe(12, 3, 12, 2, "linear", (), "classes", 1, precision="float32"),
        """\
mesh gpus(tp = 1)
split model by batch into m = [11, 1]
split model by seq into n = 3
assign model to gpus
""",
        refused="E0406",
    ),
    "windows_of_size_one": Found(
        "windows_of_size_one",
        """\
mesh gpus(cp = 1)
split model by seq into t = 2
assign model to gpus
""",
    ),
    "weights_behind_unequal_parts": Found(  # copies of these had unlike addresses, and products round by those
        Recipe(2, 4, 8, 6, "linear", (("Quantized", (8, True)), ("Grouped", (8, 2, 1, 4, "dropped"))), "squares", 1),
        """\
mesh gpus(cp = 3, dp = 2)
split model by batch into m = 2
split model by seq into t = 3
split model by "hidden.0" into cp = [1, 1, 6]
assign model to gpus
split model.linear.grads by row into dp
""",
        optimizer="adamw",
    ),
    "written_spectrum": Found(  # torch does not differentiate writes into a slice of complex numbers
        "written_spectrum",
        """\
mesh gpus(dp = 2)
split model by batch into m = 2
split model by hidden into dp
assign model to gpus
""",
    ),
    "zero_mixed_axes": Found(
        Recipe(6, 3, 6, 6, "linear", (), "squares", 1, precision="float32"),
        """\
mesh gpus(dp = 2, cp = 3)
split model by seq into cp
assign model to gpus
split model.optimizer by row into cp, dp
""",
    ),
    "zero_over_axes_of_weights": Found(
        "zero_over_axes_of_weights",
        """\
mesh gpus(dp = 2, tp = 2)
split model by batch into dp
split model by ffn into tp
split model.weights by row into dp, tp
assign model to gpus
""",
    ),
}
