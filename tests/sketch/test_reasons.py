"""Why a plan is slower than another: the reason is that of most of its time."""

import pytest

from ssdsl.compile import compile_source
from ssdsl.record import replace
from ssdsl.simulate.exposed import ExposedPart
from ssdsl.simulate.report import DeviceReport, Report, Traffic
from ssdsl.sketch.reasons import reason
from ssdsl.text.source import Source
from tests.simulate.steps import ROOT, graph_of, step

PLAN = """\
use pipeline: one_f_one_b
mesh gpus(pp = 2)
split model by batch into m = {parts}
let stage = balance(model, {shares})
assign stage[s] to gpus[pp = s] for s in 0..2
one_f_one_b(stage, {parts})
"""


def report(parts: int, shares: str) -> Report:
    graph = graph_of("gpt:350m,layers=8,batch=16", meta=True)
    return step(compile_source(Source("plan.ssp", PLAN.format(parts=parts, shares=shares)), graph, {}, ROOT))


def longer(device: DeviceReport, part: ExposedPart) -> DeviceReport:
    """The device, exposed for a second more."""
    return replace(device, exposed_parts=tuple((p, s + (p is part)) for p, s in device.exposed_parts))


@pytest.mark.parametrize(
    ("parts", "shares", "begins"),
    [
        (2, "[1, 1]", "bubble"),
        (4, "[1, 3]", "waits"),  # the light stage waits in each micro-batch: no bubble of the busiest device
    ],
)
def test_a_bubble_is_named_where_most_of_the_waiting_is_in_it(parts: int, shares: str, begins: str) -> None:
    assert reason(report(parts, shares), report(16, "[1, 1]")).startswith(begins)


def test_a_bubble_is_not_named_where_the_better_plan_waits_elsewhere_instead() -> None:
    worse, better = report(2, "[1, 1.3]"), report(4, "[1, 1.7]")
    assert better.step_s < worse.step_s < 1.1 * better.step_s and worse.bubble > better.bubble + 0.1
    assert reason(worse, better).startswith("waits")


def test_of_two_levels_that_carry_more_the_outer_one_is_named() -> None:
    inner, outer = Traffic("node", "all_reduce", 1, 100), Traffic("cluster", "all_reduce", 1, 100)  # as in a report
    best = replace(report(4, "[1, 1]"), traffic=(inner, outer))
    slower = tuple(longer(device, ExposedPart.COLLECTIVES) for device in best.devices)
    more = (replace(inner, size_bytes=300), replace(outer, size_bytes=200))
    assert reason(replace(best, devices=slower, traffic=more), best) == "sends 2.0 times as much over cluster links"


def test_a_bubble_that_is_the_same_share_is_no_reason() -> None:
    best = report(2, "[1, 1]")
    slower = replace(best, step_s=best.step_s * 1.02)
    assert reason(slower, best).startswith("waits") and reason(slower, best).endswith("% longer")


def test_a_bubble_that_is_a_smaller_share_of_a_longer_step_is_no_reason() -> None:
    best = replace(report(2, "[1, 1]"), bubble=0.6)
    assert reason(replace(best, step_s=best.step_s * 1.5, bubble=0.59), best).startswith("waits")


def test_weights_that_are_gathered_over_slow_links_are_no_longer_update() -> None:
    gathers, sums = Traffic("cluster", "all_gather", 1, 100), Traffic("node", "all_reduce", 1, 100)
    best = replace(report(4, "[1, 1]"), traffic=(sums,))
    slower = replace(best, devices=tuple(longer(d, ExposedPart.WEIGHTS) for d in best.devices))
    assert reason(slower, best).startswith("waits for communication")
    assert reason(replace(slower, traffic=(sums, gathers)), best) == "gathers over cluster links, the best hardly does"
