"""`Edit`: operators are inserted, replaced and copied in place, with their records, values and memory."""

from ssdsl.model.graph import Operand, Operator, Ref, Stage
from ssdsl.model.memory.storage import Storage
from ssdsl.model.ops.rows import ROWS
from ssdsl.model.target import target
from ssdsl.plan.edit import Edit, Numbers
from ssdsl.plan.plan import Plan
from ssdsl.record import replace
from tests.lower.by_hand import described, graph_of, plan_of

SIZES = {"batch": 8, "in": 4, "out": 6}
LINES = """
    input x[batch, in]
    weight w[in, out]
    y[batch, out] = mm x[batch, in] w[in, out]
    view[out, batch] = t y[batch, out]
    z[out, batch] = relu view[out, batch]
    loss[] = sum z[out, batch]
"""
CAT = target("aten::cat", "tensors dim")


def plan() -> Plan:
    return plan_of(graph_of(LINES, **SIZES), {"dp": 2}, {"batch": "dp 2"})


def names(found: Plan) -> list[str]:
    return [o.name for o in found.graph.operators]


def relu(name: str, of: str, like: Operator) -> Operator:
    """A `relu` of a value with the axes of an operator's result."""
    axes = like.outputs[0].axes
    args, row = (target("aten::relu", "self"), Ref(of)), ROWS["aten::relu"]
    stage, operands = Stage.COMPUTE, ((Operand(of, axes),), (Operand(name, axes),))
    return Operator(name, "relu", "aten::relu", "", "by hand", stage, args, (), *operands, like.dims, row)


def test_nothing_changes_without_changes() -> None:
    assert Edit(plan()).done() == plan() and Edit(plan()).done().graph.storages == plan().graph.storages


def test_operators_lie_next_to_others_in_the_order_in_which_they_were_inserted() -> None:
    edit = Edit(plan())
    mm = edit.operators["y"]
    for name, before in (("a", True), ("b", True), ("c", False), ("d", False)):
        edit.insert(relu(name, "y", mm), edit.of("y"), Numbers("float32"), beside="y", before=before)
    edit.insert(relu("e", "a", mm), None, Numbers("float32", True), beside="a")
    found = edit.done()
    assert names(found) == ["a", "e", "b", "y", "c", "d", "view", "z", "loss"]
    assert list(found.operators) == [name for name in names(found) if name != "e"]
    made = found.graph.values["e"]
    assert (made.shape, made.differentiable, found.graph.storages["e"]) == ((8, 6), True, Storage("e", (6, 1)))


def test_views_follow_what_their_operand_became() -> None:
    edit = Edit(plan())
    mm = edit.operators["y"]
    edit.insert(relu("kept", "y", mm), edit.of("y"), Numbers("float32", True), beside="y")
    edit.read("view", {"y": "kept"})
    found = edit.done()
    assert found.graph.by_name["view"].args[1] == Ref("kept")
    assert found.graph.storages["view"] == replace(plan().graph.storages["view"], root="kept")
    assert found.graph.storages["z"] == plan().graph.storages["z"]


def test_results_that_nothing_makes_any_more_are_no_values() -> None:
    edit = Edit(plan())
    changed = edit.operators["z"]
    edit.replace(replace(changed, outputs=(replace(changed.outputs[0], value="other"),)))
    edit.read("loss", {"z": "other"})
    values = edit.done().graph.values
    assert "z" not in values and values["other"] == replace(plan().graph.values["z"], name="other")


def test_a_copy_may_be_of_a_part() -> None:
    edit = Edit(plan())
    part = edit.operators[edit.copy("y", ["view"])]
    batch, *others = part.dims
    edit.replace(replace(part, dims=(replace(batch, size=4), *others)))
    found = edit.done()
    assert found.graph.values["y_copy2"].shape == (4, 6) and found.graph.values["y"].shape == (8, 6)
    assert found.graph.storages["y_copy2"] == Storage("y_copy2", (6, 1))
    assert found.graph.storages["view"].root == "y_copy2"


def test_a_divided_dimension_is_two_wherever_it_is() -> None:
    edit = Edit(plan())
    edit.divide({0: 2})
    found = edit.done()
    assert found.graph.values["y"].sizes == ((2, 4), (6,)) and found.graph.values["view"].sizes == ((6,), (2, 4))
    assert found.graph.values["y"].shape == (8, 6) and found.graph.storages == plan().graph.storages
    assert described(found).splitlines()[0] == "y = mm x w on gpus (batch 2 by dp)"
    assert [found.graph.dim_names[d.cls] for d in found.graph.by_name["y"].dims] == ["batch", "batch", "in", "out"]


def test_copies_for_parts_are_read_through_a_join() -> None:
    edit, readers = Edit(plan()), plan().graph.readers["view"]
    parts = ["view", edit.copy("view", ()), edit.copy("view", ())]
    relu_of = edit.operators["z"]
    args, inputs = (CAT, tuple(map(Ref, parts)), 0), tuple(replace(relu_of.inputs[0], value=part) for part in parts)
    join = replace(relu("join", "view", relu_of), kind="cat", target="aten::cat", args=args, inputs=inputs)
    edit.insert(join, edit.of("view"), Numbers("float32", True), beside=parts[0])
    for reader in readers:
        edit.read(reader.name, {"view": "join"})
    found = edit.done()
    assert names(found) == ["y", *parts, "join", "z", "loss"]
    assert [o.value for o in found.graph.by_name["z"].inputs] == ["join"]
    assert found.graph.storages["join"].root == "join" and {found.graph.storages[part].root for part in parts} == {"y"}
