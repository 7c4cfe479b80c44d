"""Meshes on slices of others become slices of these, with axes that are divided as both need."""

import pytest

from ssdsl.text.diagnostic import PlanError


@pytest.mark.parametrize(
    ("lines", "axes", "place"),
    [
        ("mesh gpus(a = 2, b = 3)\nmesh row(x = 3) on gpus[a = 1]", "a 2, b 3", "gpus[a = 1]"),
        ("mesh gpus(a = 2, b = 3)\nmesh row(x = 6) on gpus", "a 2, b 3", "gpus"),
        ("mesh gpus(d = 6)\nmesh row(x = 2, y = 3) on gpus", "d_outer 2, d_inner 3", "gpus"),
        ("mesh gpus(d = 6)\nmesh row(x = 3) on gpus[d = 1], gpus[d = 3], gpus[d = 5]", "d_outer 3, d_inner 2",
         "gpus[d_inner = 1]"),
        ("mesh gpus(d = 8)\nmesh row(x = 2) on gpus[d = 2], gpus[d = 3]", "d_outer 4, d_inner 2", "gpus[d_outer = 1]"),
        ("mesh gpus(d = 4)\nmesh half(h = 2) on gpus[d = 0], gpus[d = 1]\nmesh row(x = 1) on half[h = 1]",
         "d_outer 2, d_inner 2", "gpus[d_outer = 0, d_inner = 1]"),
    ],
)  # fmt: skip
def test_a_mesh_on_another_is_a_slice_of_it(plan, lines: str, axes: str, place: str) -> None:
    found = plan(f"{lines}\nassign model to row")
    (mesh,) = found.meshes
    assert ", ".join(f"{name} {size}" for name, size in mesh.axes) == axes
    assert {str(record.place) for record in found.operators.values() if record.place is not None} == {place}


def test_an_index_is_over_all_axes_in_place_of_its_own(plan) -> None:
    found = plan("mesh gpus(a = 2, b = 2)\nmesh row(x = 4) on gpus\nsplit model by batch into x\nassign model to row")
    names = {tuple(i.name for i in record.indices) for record in found.operators.values() if record.indices}
    assert names == {("a", "b")}


def test_an_index_of_chunks_stays_one(plan) -> None:
    lines = "split model by batch into x = [1, 2, 2, 3]\nassign model to row"
    found = plan(f"mesh gpus(a = 2, b = 2)\nmesh row(x = 4) on gpus\n{lines}")
    indices = [i for record in found.operators.values() for i in record.indices]
    assert {(i.name, i.inner) for i in indices} == {("a", ("b",))}


def test_an_index_of_chunks_stays_over_all_its_axes_whatever_mesh_comes_back_next(plan) -> None:
    lines = "split model by batch into x = [1, 2, 2, 3]\nassign model to row"
    found = plan(f"mesh gpus(a = 2, b = 2)\nmesh half(z = 2) on gpus[b = 0]\nmesh row(x = 4) on gpus\n{lines}")
    indices = [i for record in found.operators.values() for i in record.indices]
    assert {(i.name, i.inner) for i in indices} == {("a", ("b",))}


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ("mesh gpus(d = 4)\nmesh row(x = 3) on gpus", "E0251"),
        ("mesh gpus(d = 4)\nmesh row(x = 4) at gpus", "E0111"),
        ("mesh gpus(d = 4)\nmesh row(x = 4) over gpus", "E0251"),
        ("mesh gpus(d = 4)\nmesh row(x = 2) on gpus[d = 3], gpus[d = 1]", "E0251"),
        ("mesh gpus(d = 4)\nmesh row(x = 3) on gpus[d = 0], gpus[d = 1], gpus[d = 2]", "E0251"),
        ("mesh gpus(a = 2, b = 3)\nmesh row(x = 3, y = 2) on gpus", "E0251"),
        ("mesh gpus(d = 4)\nmesh row(x = 4) on model", "E0210"),
        ("mesh gpus(d = 4)\nmesh row(x = 4) on gpus\nsplit model by batch into d = 2\nassign model to row", "E0251"),
    ],
)
def test_mistakes(plan, lines: str, code: str) -> None:
    assert plan.mistakes(lines + ("" if "assign" in lines else "\nassign model to row")) == [code]


@pytest.mark.parametrize(
    ("inner", "names"),
    [
        ("mesh a(x = 2, y = 3) on gpus\nmesh b(u = 3, v = 2) on gpus", "`a`, `b` and `d`"),
        ("mesh a(x = 3, y = 2) on gpus\nmesh b(u = 2, v = 3) on a", "`b` and `x`"),
    ],
)
def test_meshes_that_do_not_fit_are_named_as_in_the_plan(plan, inner: str, names: str) -> None:
    with pytest.raises(PlanError, match=f"no axes have the boundaries of {names}$"):
        plan(f'mesh gpus(d = 6)\n{inner}\nassign model["h.0"] to a\nassign model - model["h.0"] to b')


@pytest.mark.parametrize("word", ["on = 2", "on"])
def test_on_is_a_name_elsewhere(plan, word: str) -> None:
    """A param, an index and a mesh may be called `on`."""
    lines = (
        "param on = 2\nmesh gpus(d = on)\nassign model to gpus" if "=" in word else "mesh on(d = 2)\nassign model to on"
    )
    assert plan(lines).meshes


def test_a_slice_at_a_place_of_an_axis_that_another_one_divides(plan) -> None:
    found = plan(
        "mesh gpus(a = 2, b = 4)\nmesh one(z = 2) on gpus[b = 2]"
        "\nmesh two(w = 2) on gpus[a = 0, b = 2], gpus[a = 0, b = 3]"
        "\nlet stage = balance(model, 2)\nassign stage[0] to one\nassign stage[1] to two"
    )
    places = {str(record.place) for record in found.operators.values() if record.place is not None}
    assert places == {"gpus[b_outer = 1, b_inner = 0]", "gpus[a = 0, b_outer = 1]"}
