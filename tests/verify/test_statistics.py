"""Batch statistics of micro-batches: the model asks for them, and then every plan equals the single device."""

import copy

import pytest
import torch
from torch import nn

import ssdsl
from bench.fuzz.trial import Outcome, try_plan
from ssdsl.lower.functions import form_sections
from ssdsl.runtime.options import Training
from tests.verify.conftest import HERE, captured

PLANS = {
    "dp": "mesh gpus(dp = 2)\nsplit model by batch into dp\nassign model to gpus\n",
    "channels": 'mesh gpus(tp = 2)\nsplit model by "a.weight.0" into tp\nassign model to gpus\n',
    "apart": 'mesh gpus(tp = 2)\nsplit model by "a.weight.0" into tp parts [[0, 3], [1, 2]]\nassign model to gpus\n',
    "micro": "mesh gpus(dp = 1)\nsplit model by batch into m = 2\nassign model to gpus\n",
    "1f1b": """\
use pipeline: one_f_one_b
mesh gpus(pp = 2, dp = 2)
split model by batch into dp, m = 2
let stage = balance(model, 2)
assign stage[s] to gpus[pp = s] for s in 0..2
one_f_one_b(stage, 2)
""",
}


def tried(name: str, plan: str) -> Outcome:
    model, graph = captured(f"normed.py:{name}")
    return try_plan(model, graph, PLANS[plan], Training(2, optimizer="adamw", lr=0.02))


def test_statistics_of_a_part_of_the_channels_are_stored_in_runs() -> None:
    assert tried("whole", "channels").kind == "equal"
    assert (tried("whole", "apart").kind, tried("whole", "apart").sign) == ("refused", "E0408")


def test_recomputation_changes_parts_of_statistics_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, graph = captured(f"{HERE.parent / 'fuzz' / 'buffers.py'}:batch_norm_of_two_views")
    plan = "mesh gpus(dp = 1)\nsplit model by ffn into c = 2\nrecompute model\nassign model to gpus\n"
    outcome = try_plan(model, graph, plan, Training(2, lr=0.02))
    assert outcome.kind == "equal", outcome.text
    monkeypatch.setattr(form_sections, "with_own_statistics", lambda function, *_: function)
    outcome = try_plan(model, graph, plan, Training(2, lr=0.02))
    assert "a part that is taken where it is computed again" in outcome.text, "a proof that sees it"


@pytest.mark.parametrize("plan", ["dp", "micro", "1f1b"])
@pytest.mark.parametrize("name", ["grouped", "grouped_cumulative", "grouped_plain"])
def test_statistics_of_micro_batches(name: str, plan: str) -> None:
    outcome = tried(name, plan)
    assert outcome.kind == "equal", outcome.text


@pytest.mark.parametrize("name", ["whole", "cumulative"])
def test_statistics_of_the_batch_split_over_devices_alone(name: str) -> None:
    assert tried(name, "dp").kind == "equal"
    assert (tried(name, "micro").kind, tried(name, "micro").sign) == ("refused", "E0402")


@pytest.mark.parametrize(
    "options", [{}, {"momentum": None}, {"affine": False}, {"track_running_stats": False}], ids=str
)
def test_groups_are_micro_batches_one_after_another(options: dict[str, object]) -> None:
    """A module in groups computes what the untouched one does, given the parts of the batch in turn."""
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(3, **options).double()  # type: ignore[arg-type]
    grouped = ssdsl.micro_batch_statistics(copy.deepcopy(norm), 4)
    for _ in range(2):
        x = torch.randn(8, 3, 5, dtype=torch.float64) + 1
        expected = torch.cat([norm(part) for part in x.chunk(4)])
        torch.testing.assert_close(grouped(x), expected)
    for name, buffer in norm.named_buffers():
        torch.testing.assert_close(grouped.get_buffer(name), buffer)
    assert list(grouped.state_dict()) == list(norm.state_dict())
    norm.eval()
    torch.testing.assert_close(grouped.eval()(x), torch.cat([norm(part) for part in x.chunk(4)]))


def test_a_norm_with_two_names_is_one_norm_in_groups() -> None:
    norm = nn.BatchNorm1d(3)
    grouped = ssdsl.micro_batch_statistics(nn.Sequential(norm, nn.ReLU(), norm), 4)
    assert grouped.get_submodule("0") is grouped.get_submodule("2") is not norm


def test_a_batch_without_such_groups_is_an_error() -> None:
    grouped = ssdsl.micro_batch_statistics(nn.BatchNorm1d(3), 4)
    with pytest.raises(ValueError, match="a batch of 6 has no 4 equal micro-batches"):
        grouped(torch.zeros(6, 3))
    with pytest.raises(ValueError, match="0 groups"):
        ssdsl.micro_batch_statistics(nn.BatchNorm1d(3), 0)
