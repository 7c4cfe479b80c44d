"""Which shipped plans prove on a model, at which params, and what fits."""

from ssdsl.cluster.load import load_cluster
from ssdsl.lang.read import read_source
from ssdsl.lang.shipped import plan_path
from ssdsl.matrix.cell import PlanText
from ssdsl.matrix.on_model import PlanOnModel, divides, plan_on_model, plans_on_model
from ssdsl.matrix.trials import Trials
from ssdsl.show.tables.on_model import on_model_json, on_model_view
from ssdsl.text.source import Source
from ssdsl.workspace import Workspace
from tests.captured import graph_of

THREES = "gpt:tiny,layers=2,hidden=48,heads=3,seq=15,batch=9,vocab=63"  # nothing of which 2 divides, but 48


def trials_of(spec: str, cluster: str | None = None) -> Trials:
    on = load_cluster(cluster) if cluster is not None else None
    return Trials(spec, Workspace(graph_of(spec), on), on=on)


def tried(spec: str, plan: str, devices: range, cluster: str | None = None) -> PlanOnModel:
    path = plan_path(plan)
    return plan_on_model(trials_of(spec, cluster), PlanText(plan, read_source(path), path.parent), devices)


def test_a_plan_that_refuses_its_defaults_is_found_at_others() -> None:
    found = tried(THREES, "data_parallel", range(2, 9))
    assert found.cells[0].params == {"D": 2} and not found.cells[0].is_proved
    assert found.best is not None and found.best.params == {"D": 3} and found.is_good


def test_what_is_far_from_the_defaults_is_found_too() -> None:
    """All settings near to the defaults are refused: only 9 divides the batch, and what is left of the sequence."""
    text = """\
param A = 2 in [2, 4, 5, 6, 7, 8, 9]
param B = 2 in [2, 4, 5, 6, 7, 8, 9]
mesh gpus(a = 3)
split model by batch into m = A
split model by seq into a, t = B
assign model to gpus
"""
    trials = trials_of(THREES.replace("seq=15", "seq=27"))
    found = plan_on_model(trials, PlanText("p", Source("p.ssp", text)), range(3, 4))
    assert found.best is not None and found.best.params == {"A": 9, "B": 9}
    assert 10 < len(found.cells) <= 30


def test_a_plan_that_divides_nothing_is_not_good() -> None:
    found = tried("gpt:tiny,layers=2,hidden=32,seq=16,vocab=64", "spatial", range(4, 5))
    assert found.best is not None and not divides(found.best) and not found.is_good


def test_what_fits_is_preferred_to_what_is_near() -> None:
    found = tried("gpt:1.3b,batch=8,dtype=bf16", "zero", range(8, 9), "a100x8")
    assert found.is_good and found.setting is not None and not found.setting.over
    assert found.best is not None and found.best.params["D"] == 8
    over = tried("gpt:175b,batch=8,dtype=bf16", "data_parallel", range(8, 9), "a100x8")
    assert not over.is_good and over.setting is not None and over.setting.over > 0


def test_the_table_has_each_plan_and_the_reason_of_a_refusal() -> None:
    found = [*plans_on_model(trials_of("gpt:tiny,layers=2,hidden=32,seq=16,vocab=64"), range(2, 3))]
    rows = {str(row[0]): row for row in on_model_view("gpt", None, range(2, 3), found).rows}
    assert rows["tensor_parallel"][-1] == "proved" and rows["experts"][-1] == "refused E0240"
    assert rows["megatron"][1:3] == ("D=1 T=2 S=1 M=4 R=0", 2)
    papers = {plan.plan for plan in found if plan.of_paper}
    assert "gpt_megatron" in papers and "swin_spmd" in papers and "swin_spmd" not in rows
    notes = on_model_view("gpt", None, range(2, 3), found).notes
    assert any(note.startswith("E0240: ") and note.endswith("(experts)") for note in notes)
    data = on_model_json("gpt", None, range(2, 3), found)
    assert {plan["plan"] for plan in data["plans"]} == {plan.plan for plan in found}
    assert all(plan["tried"] or plan["outcome"].startswith("takes other") for plan in data["plans"])
