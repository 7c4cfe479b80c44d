"""The options of a compiled program's `main.py`, and what it prints."""

import sys

import pytest
import torch

from ssdsl.runtime.main import _options, _train, make_optimizer
from ssdsl.runtime.train.engine import Engine
from ssdsl.runtime.train.observers import ObservedStep, ProgressObserver
from tests.train.conftest import batches, on_ranks


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("adamv", "there is no optimizer `adamv`: torch.optim has"),
        ("adamw,weight_dekay=0.1", "AdamW does not take `weight_dekay=0.1`"),
        ("adamw,weight_decay=-1", "AdamW does not take `weight_decay=-1`"),
        ("sgd,0.9", "`0.9` is not NAME=VALUE"),
        ("sgd,momentum=m", "`momentum=m` is not NAME=VALUE"),
        ("sgd,lr=0.1", "give the learning rate by --lr"),
    ],
)
def test_an_optimizer_that_torch_does_not_have_is_refused_before_the_ranks_meet(
    asked: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["main.py", "--optimizer", "AdamW,betas=(0.9,0.95)"])
    assert _options().optimizer == "AdamW,betas=(0.9,0.95)"
    monkeypatch.setattr(sys, "argv", ["main.py", "--optimizer", asked])
    with pytest.raises(SystemExit):
        _options()
    assert said in capsys.readouterr().err


def test_an_optimizer_gets_its_options() -> None:
    def work(engine: Engine) -> object:
        make_optimizer(engine, "sgd,momentum=0.9,nesterov=True", 0.1)
        group = engine.optim.param_groups[0]
        return group["lr"], group["momentum"], group["nesterov"]

    assert on_ranks("one", work) == [(0.1, 0.9, True)]


@pytest.mark.parametrize("given", ["--clip=0", "--clip=-1", "--clip=nan", "--clip=one"])
def test_a_norm_is_positive(given: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["main.py", given])
    with pytest.raises(SystemExit):
        _options()
    assert f"'{given.removeprefix('--clip=')}' is not a positive number" in capsys.readouterr().err


@pytest.mark.parametrize("given", ["--steps=0", "--save-every=0", "--accumulate=two", "--keep=-1"])
def test_a_count_is_at_least_one(
    given: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["main.py", "--seed=0", "--steps=1", given])
    with pytest.raises(SystemExit):
        _options()
    name, _, number = given.partition("=")
    assert f"argument {name}: '{number}' is not a number of at least 1" in capsys.readouterr().err


def test_a_step_is_printed_with_its_evaluation(capsys: pytest.CaptureFixture[str]) -> None:
    def steps(engine: Engine) -> None:
        engine.optimizer(torch.optim.SGD, lr=0.5)
        progress = ProgressObserver(engine, None, clips=False)
        engine.step(batches(1)[0])
        progress.after(ObservedStep(0, 2.0, 0.01, 0.0, None))
        progress.after(ObservedStep(1, 1.5, 0.01, 0.0, 1.25))

    on_ranks("one", steps)
    assert capsys.readouterr().out.splitlines() == [
        "step 0  loss 2.000000  lr 0.5  10.0 ms",
        "step 1  loss 1.500000  lr 0.5  10.0 ms  evaluation 1.250000",
    ]


def test_samples_that_are_not_evaluated_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["main.py", "--eval-data", "own.py:samples"])
    options = _options()
    options.steps = 0

    def work(engine: Engine) -> None:
        loader = engine.loader([{}] * 29, 12)  # the program of this engine does not evaluate
        monkeypatch.setattr("ssdsl.runtime.main._loader", lambda *_, **__: loader)
        _train(engine, batches(1), options, 0)

    on_ranks("one", work)
    assert "leaves out the last 5 samples, which fill no batch of 12" in capsys.readouterr().out
