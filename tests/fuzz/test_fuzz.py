"""The fuzzer itself: fixed seeds give the same plans, the runs find what is wrong, and a failure is made small."""

import importlib.util
from pathlib import Path

import pytest

from bench.fuzz.models import Recipe
from bench.fuzz.run import cases, main
from bench.fuzz.shrink import smaller_cases, smallest
from bench.fuzz.trial import Case, try_case

MLP = ("BareMlp", (4, 8))


def case(plan: str, *layers: tuple[str, tuple[object, ...]]) -> Case:
    return Case(Recipe(4, 2, 4, 6, "linear", layers, "squares", 1), tuple(plan.splitlines()), "sgd", 1)


def test_a_seed_gives_the_same_plans() -> None:
    assert list(cases(1, 2)) == list(cases(1, 2))


def test_a_plan_is_equal_or_refused() -> None:
    assert (
        try_case(case("mesh gpus(dp = 2)\nsplit model by batch into dp, m = 2\nassign model to gpus", MLP)).kind
        == "equal"
    )
    outcome = try_case(case("mesh gpus(dp = 3)\nsplit model by batch into dp\nassign model to gpus", MLP))
    assert (outcome.kind, outcome.sign) == ("refused", "E0203")


@pytest.mark.slow
def test_a_failure_becomes_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """With gradients that are not summed, what is left is one split over two ranks."""
    monkeypatch.setattr("ssdsl.runtime.step.flat_params.Replicated.start_reduce", lambda flat: None)
    splits = "split model by batch into dp, m = 2\nsplit model by seq into tp"
    plan = f"mesh gpus(dp = 2, tp = 2)\n{splits}\nassign model to gpus"
    large = case(plan, MLP, ("Norm", (4,)), MLP)
    outcome = try_case(large)
    assert outcome.kind == "wrong"
    small, result = smallest(large, outcome, 20.0, try_case, smaller_cases)
    assert (result.kind, result.sign) == (outcome.kind, outcome.sign)
    assert len(small.plan) == 3 and len(small.recipe.layers) <= 1 and "m = " not in small.plan_text


def test_the_command(tmp_path: Path) -> None:
    main(["--models", "1", "--seed", "3", "--shrink-s", "0", "--out", str(tmp_path / "found")])
    for folder in (tmp_path / "found").glob("*"):
        assert (folder / "plan.ssp").read_text().count("mesh") and (folder / "command").exists()
        spec = importlib.util.spec_from_file_location("made", folder / "model.py")
        assert spec is not None
