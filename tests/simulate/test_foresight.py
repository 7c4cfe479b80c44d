"""The plans of `bench/foresight/real.py`: what the recorded ones need is all that the predicted ones need."""

from pathlib import Path

from bench.foresight.real import PREDICTED, RECORDED
from ssdsl.compile import compile_plan
from ssdsl.lang.shipped import plan_path
from ssdsl.simulate.profile.profile import merged
from ssdsl.simulate.profile.read_costs import lacking
from ssdsl.workspace import Compiled
from tests.simulate.profile.test_profile import profile_of
from tests.simulate.steps import graph_of

SPEC = "gpt:tiny,batch=16"


def chosen(words: str) -> Compiled:
    plan, *settings = words.split(",")
    params = {name: int(n) for name, _, n in (s.partition("=") for s in settings)}
    return compile_plan(Path(plan_path(plan)), graph_of(SPEC), params)


def test_recorded_plans_predict_all_others() -> None:
    assert len(PREDICTED) == 16 and not {*RECORDED} & {*PREDICTED.values()}
    profile = merged([profile_of(chosen(words)) for words in RECORDED])
    missing = {name: found for name, words in PREDICTED.items() if (found := lacking(chosen(words).program, profile))}
    assert missing == {}
